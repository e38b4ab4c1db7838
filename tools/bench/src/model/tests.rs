use super::*;

#[test]
fn percentiles_are_those_of_the_sorted_list() {
    // 1 us to 1000 us, each once.
    let latency = Latency::of((1..=1000).map(|us| (us * 1000, 1))).expect("some");
    assert_eq!((latency.count, latency.min_us, latency.max_us), (1000, 1.0, 1000.0));
    assert!((latency.mean_us - 500.5).abs() < 1e-9);
    assert_eq!(latency.percentile_us(50.0), Some(500.0));
    assert_eq!(latency.percentile_us(99.0), Some(990.0));
    assert_eq!(latency.percentile_us(99.9), Some(999.0));
    // One in ten thousand cannot be told of a thousand.
    assert_eq!(latency.percentile_us(99.99), None);
    assert_eq!(latency.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
    for bucket in &latency.buckets {
        let wide = bucket.to_us / bucket.from_us;
        assert!((1.08..1.1).contains(&wide), "{bucket:?}");
    }
    assert_eq!(Latency::of([(5, 0)]), None);
    assert_eq!(Latency::of([(7, 1)]).and_then(|one| one.percentile_us(50.0)), Some(0.007));
}

#[test]
fn merged_latencies_count_all() {
    let quick = Latency::of([(10_000, 900)]).expect("some");
    let slow = Latency::of([(1_000_000, 100)]).expect("some");
    let both = Latency::merged([&quick, &slow]).expect("some");
    assert_eq!((both.count, both.min_us, both.max_us), (1000, 10.0, 1000.0));
    assert!((both.mean_us - 109.0).abs() < 1e-9, "{both:?}");
    let p50 = both.percentile_us(50.0).expect("some");
    assert!((9.0..11.0).contains(&p50), "{p50}");
    let p99 = both.percentile_us(99.0).expect("some");
    assert!((900.0..1100.0).contains(&p99), "{p99}");
    let most = both.percentiles.iter().map(|at| at.us).fold(0.0, f64::max);
    assert!(most <= both.max_us, "{both:?}");
    assert_eq!(Latency::merged([]), None);
}

#[test]
fn secrets_do_not_reach_the_report() {
    for (url, told) in [
        ("iscsi://me%secret@host/iqn.x/0", "iscsi://me@host/iqn.x/0"),
        ("iscsi://me:se@cret@host:3260/iqn.x/0", "iscsi://me@host:3260/iqn.x/0"),
        ("iscsi://host/iqn.2026-11.x:a@b/0", "iscsi://host/iqn.2026-11.x:a@b/0"),
        ("/dev/disk/by-id/x@y", "/dev/disk/by-id/x@y"),
        ("iscsi://me%s/e@cret@host/iqn.x/0", "iscsi://me@host/iqn.x/0"),
        ("iscsi://me@host?data_digest=crc32c", "iscsi://me@host?data_digest=crc32c"),
        (
            "iscsi://me%secret@host/iqn.x/0?target_user=it&target_password=terces&header_digest=none",
            "iscsi://me@host/iqn.x/0?target_user=it&target_password=&header_digest=none",
        ),
    ] {
        assert_eq!(without_secret(url), told);
    }
}

#[test]
fn another_form_is_refused_in_a_sentence() {
    let error = Results::from_json("{\"schema\": 2, \"runs\": 5}", "x.json").expect_err("later");
    let text = error.to_string();
    assert!(text.contains("x.json has form 2") && text.contains("use the lunet"), "{text}");
    let error = Results::from_json("[]", "x.json").expect_err("no object");
    assert!(error.to_string().contains("holds no results"), "{error}");
}

fn small() -> Results {
    let text = include_str!("../../tests/data/small.json");
    Results::from_json(text, "small.json").expect("it is right")
}

#[test]
fn what_is_written_can_be_read() {
    let results = small();
    let again = Results::from_json(&results.to_json(), "again").expect("it was just written");
    assert_eq!(again, results);
    assert_eq!(results.rounds(), 2);
}

/// Each change makes the file contradict itself, and the sentence says where.
#[test]
fn contradictions_are_found() {
    type Change = fn(&mut Results);
    let changes: [(Change, &str); 9] = [
        (|all| all.runs[0].target = "nobody".into(), "nobody"),
        (|all| all.runs[0].workload = "nothing".into(), "nothing"),
        (|all| all.runs[1].round = 1, "two runs"),
        (|all| all.targets.push(all.targets[0].clone()), "two targets"),
        (|all| all.workloads[0].block_bytes = 0, "cannot be run"),
        (|all| all.runs[0].seconds = -1.0, "seconds is -1"),
        (|all| all.ceilings[0].how.clear(), "how it was got"),
        (
            |all| {
                let flow = all.runs[0].read.as_mut().expect("it reads");
                flow.latency.as_mut().expect("with latency").buckets[0].count += 1;
            },
            "histogram holds",
        ),
        (|all| all.runs[0].round = 0, "rounds begin at 1"),
    ];
    for (change, sentence) in changes {
        let mut results = small();
        change(&mut results);
        let flaw = check(&results).expect_err(sentence).to_string();
        assert!(flaw.contains(sentence), "{flaw}");
    }
}
