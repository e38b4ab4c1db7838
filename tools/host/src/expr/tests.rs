use super::*;
use crate::facts::{Facts, Nic};

fn facts() -> Facts {
    let nic = Nic { name: "eth0".into(), mtu: Some(9000), ..Nic::default() };
    Facts { nics: vec![nic], ..Facts::default() }
}

fn eval(text: &str) -> Result<Value, EvalError> {
    Expression::new(text).expect(text).eval(&Scope::new(&facts()))
}

fn fill(text: &str) -> Result<String, EvalError> {
    Template::new(text).expect(text).fill(&Scope::new(&facts()))
}

#[test]
fn facts_are_variables() {
    assert_eq!(eval("nics[0].mtu"), Ok(Value::Int(9000)));
    assert_eq!(eval("nics.exists(n, n.mtu == 9000)"), Ok(Value::Bool(true)));
    assert_eq!(eval("2 * GiB"), Ok(Value::Int(2 << 30)));
}

#[test]
fn what_needs_the_unknown_is_unknown() {
    for text in [
        "memory.total_bytes > 5",
        "memory.total_bytes + 5",
        "zfs.pools",
        "get(sysctls, 'vm.swappiness') > 3",
        "sysctls['vm.swappiness'] == 3",
        "platform.root && true",
        "iec(memory.total_bytes)",
        "platform.kernel.startsWith('6')",
        "nics[3].mtu",
        "percent(1, 0)",
        "in_network(platform.kernel, '10.0.0.0/8')",
    ] {
        let error = eval(text).expect_err(text);
        assert!(matches!(error, EvalError::Unknown(_)), "{text}: {error:?}");
    }
    let expression = Expression::new("platform.root").expect("it is CEL");
    assert!(matches!(expression.holds(&Scope::new(&facts())), Err(EvalError::Unknown(_))));
}

#[test]
fn a_mistake_is_no_unknown() {
    for text in ["'a' + 1", "nosuch.thing", "nosuch(3)", "nics > 3"] {
        let error = eval(text).expect_err(text);
        assert!(matches!(error, EvalError::Wrong(_)), "{text}: {error:?}");
    }
    let error = Expression::new("1 +").expect_err("it is cut off");
    assert!(error.to_string().starts_with("`1 +`: "), "{error}");
    assert!(Expression::new("nics").expect("CEL").holds(&Scope::new(&facts())).is_err());
}

#[test]
fn texts_are_filled() {
    assert_eq!(fill("{nics[0].name}: {nics.map(n, n.mtu)}"), Ok("eth0: 9000".into()));
    assert_eq!(fill("{{{nics[0].mtu / 9}}} {{}}"), Ok("{1000} {}".into()));
    assert_eq!(fill("{ {'a}': 1.5}['a}'] }"), Ok("1.5".into()));
    assert!(matches!(fill("{memory.total_bytes}"), Err(EvalError::Unknown(_))));
    for wrong in ["{", "a}", "{1 +}", "{'}"] {
        assert!(Template::new(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn functions_give_what_they_say() {
    for (expression, text) in [
        ("or(memory.total_bytes, 7)", "7"),
        ("known(nics[0].mtu)", "yes"),
        ("iec(68719476736)", "64 GiB"),
        ("iec(1536)", "1.5 KiB"),
        ("iec(512)", "512 bytes"),
        ("rate(15753846153)", "15.8 GB/s"),
        ("rate(812000000)", "812 MB/s"),
        ("gbit(100000)", "100 Gbit/s"),
        ("gbit(2500)", "2.5 Gbit/s"),
        ("gbit(100)", "100 Mbit/s"),
        ("percent(1, 3)", "33"),
        ("sum([1, 2, 3])", "6"),
        ("sum([1, 2.5])", "3.5"),
        ("least([4, 3, 5])", "3"),
        ("most([4, 3, 5])", "5"),
        ("unique([2, 1, 2])", "2, 1"),
        ("sort(['b', 'a'])", "a, b"),
        ("flatten([[1, 2], [3]])", "1, 2, 3"),
        ("join(['b', 'a'], ' and ')", "b and a"),
        ("change({'a.b': 1}, 'sysctl -w ', ['a.b=1', 'a.c=2'])", "sysctl -w a.c=2"),
        ("change({'a': 'x'}, 'set ', ['a=y', 'b=1 2'])", "set a=y b='1 2'"),
        ("size(change({'a': 'x', 'b': [1, 2]}, '', ['a=x', 'b=1 2']))", "0"),
        ("change(memory.total_bytes, '', ['a=1'])", "a=1"),
        ("raise({'a': 5, 'b': 5, 'c': '5,force'}, '', ['a=6', 'b=5'])", "a=6"),
        ("raise({'a': [1, 2, 9]}, '', ['a=1 2 10'])", "a='1 2 10'"),
        ("size(raise({'a': [1, 2, 9], 'b': '7'}, '', ['a=3 4 8', 'b=7']))", "0"),
        ("join(raise({'a': 9}, 'x ', ['a=8']) + ['then'], '; ')", "then"),
        ("round(2.5)", "3"),
        ("ceil_div(7, 2)", "4"),
        ("pow2(12)", "4096"),
        ("in_network('10.0.3.4', '10.0.0.1/16')", "yes"),
        ("in_network('10.1.3.4', '10.0.0.1/16')", "no"),
        ("in_network('fd00::5', 'fd00::1/64')", "yes"),
        ("in_network('10.0.0.1', '10.0.0.1')", "yes"),
        ("in_network('host', '10.0.0.1/8')", "no"),
        ("is_public('8.8.8.8')", "yes"),
        ("is_public('2a00::1')", "yes"),
        (
            "['192.168.1.1', '10.1.1.1', '127.0.0.1', 'fd00::1', '::1', '169.254.3.3', '0.0.0.0', \
          '100.64.0.1', 'name'].exists(a, is_public(a))",
            "no",
        ),
    ] {
        assert_eq!(fill(&format!("{{{expression}}}")), Ok(text.to_owned()), "{expression}");
    }
    assert_eq!(eval("sum([])"), Ok(Value::Null));
    assert_eq!(eval("sum([1, memory.total_bytes])"), Ok(Value::Null));
}

#[test]
fn facts_can_be_made_up_in_full() {
    let facts: Facts = sample();
    assert_eq!(facts.nics.len(), 1);
    assert_eq!(facts.zfs.expect("all is there").pools[0].vdevs[0].disks.len(), 1);
    assert!(facts.platform.truenas.is_some());
}

#[test]
fn a_name_that_no_machine_has_is_found_before_any_machine_is_looked_at() {
    let shape = Shape::facts();
    let check = |text: &str| Expression::new(text).expect(text).check(&shape);
    for fine in ["sysctls['a'] > 2 * GiB", "zfs.pools.filter(p, p.ashift > 1).all(p, p.name != '')"]
    {
        assert!(check(fine).is_ok(), "{fine}: {:?}", check(fine));
    }
    for (text, path) in [
        ("cpu.govenor == 'x'", "cpu.govenor"),
        ("false && zfs.pools.exists(p, p.vdevs.all(v, v.ashfit == 12))", "v.ashfit"),
        ("drives.filter(d, d.kind == 'nvme').exists(d, d.lbaformat == 1)", "d.lbaformat"),
        ("nics.map(n, n.pfc)[0].prio", ".prio"),
    ] {
        let wrong = Err(CheckError::NoSuchFact(path.to_owned()));
        assert_eq!(check(text), wrong, "{text}");
    }
    assert_eq!(check("nic.mtu"), Err(CheckError::NoSuchVariable("nic".to_owned())));
    let list = CheckError::NoList("sysctls[\"a\"]".to_owned());
    assert_eq!(check("sysctls['a'].exists(x, x > 1)"), Err(list));
}

#[test]
fn what_is_missing_is_named() {
    let expression = Expression::new("nics[0].mtu < 9000 && zfs.version_num > 3").expect("CEL");
    assert_eq!(expression.missing(&Scope::new(&facts())), ["zfs.version_num"]);
}

/// A hash table has another order each time: it must not be seen.
#[test]
fn a_map_is_ranged_over_in_the_order_of_its_names() {
    for _ in 0..20 {
        let all = "join({'d': 1, 'a': 2, 'c': 3, 'b': 4, 'f': 5, 'e': 6}.map(k, k), '')";
        assert_eq!(eval(all), Ok("abcdef".into()));
        let inner = "join({'b': 1, 'a': 2}.filter(k, k != 'x').map(k, [9, 8].map(n, k)), ' ')";
        assert_eq!(eval(inner), Ok("a, a b, b".into()));
    }
}

#[test]
fn a_range_that_is_none_is_unknown_or_wrong() {
    assert!(matches!(eval("null.exists(x, x == 1)"), Err(EvalError::Unknown(_))));
    assert!(matches!(eval("'text'.exists(x, x == 1)"), Err(EvalError::Wrong(_))));
    assert!(matches!(eval("[1].map(x, platform.root.map(y, y))"), Err(EvalError::Unknown(_))));
}
