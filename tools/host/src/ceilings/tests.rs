use super::*;
use crate::facts::{Cpu, Dimm, Memory, Nic, Pcie, Target, facts};
use crate::source::Tree;

fn layer<'a>(ceilings: &'a Ceilings, name: &str) -> &'a Layer {
    ceilings.layers.iter().find(|layer| layer.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn nic(speed_mbit: i64, mtu: i64, bytes_per_second: i64) -> Nic {
    Nic {
        name: "eth0".into(),
        carrier: Some(true),
        speed_mbit: Some(speed_mbit),
        mtu: Some(mtu),
        pcie: Some(Pcie {
            address: "0000:01:00.0".into(),
            bytes_per_second: Some(bytes_per_second),
            max_payload_bytes: Some(256),
            ..Pcie::default()
        }),
        ..Nic::default()
    }
}

/// What the recipe's author saw: drives near 6 GB/s each way, a card in PCIe 3.0 x16 below
/// 100 Gbit/s, and about 4 GB/s for one virtual machine, which is neither.
#[test]
fn the_machine_of_the_recipe() {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/recipe");
    let tree = Tree::open(tree.as_ref()).expect("it is there");
    let ceilings = ceilings(&facts(&tree), None);
    let drives = layer(&ceilings, "drives of tank").both.expect("they are known");
    assert!((5.5e9..6.5e9).contains(&drives), "{drives}");
    let card = layer(&ceilings, "PCIe of enp23s0np0").both.expect("it is known");
    assert!((95e9..100e9).contains(&(card * 8.0)), "{card}");
    let session = layer(&ceilings, "one session").both.expect("it is known");
    assert!((3.8e9..4.4e9).contains(&session), "{session}");
    assert_eq!(ceilings.binds_both.as_deref(), Some("drives of tank"));
    assert_eq!(ceilings.binds_one_session.as_deref(), Some("one session"));
    assert!(ceilings.layers.iter().all(|layer| layer.missing.is_none()), "{ceilings:?}");
}

#[test]
fn headers_take_their_share_of_the_wire() {
    let share = |mtu| {
        let facts = Facts { nics: vec![nic(10_000, mtu, 1 << 40)], ..Facts::default() };
        layer(&ceilings(&facts, None), "network").read.expect("it is known") / 1.25e9
    };
    // 1448 of 1538 bytes, 8948 of 9038, and 48 bytes for each 256 KiB.
    assert!((share(1500) - 0.941_3).abs() < 1e-3, "{}", share(1500));
    assert!((share(9000) - 0.989_9).abs() < 1e-3, "{}", share(9000));
}

#[test]
fn the_narrowest_layer_binds() {
    let mut facts = Facts {
        nics: vec![nic(100_000, 9000, 3_938_461_538)],
        memory: Memory {
            dimms: vec![Dimm::default(); 8],
            bandwidth_max_bytes_per_second: Some(200_000_000_000),
            ..Memory::default()
        },
        cpu: Cpu { cores: Some(16), max_mhz: Some(3000), ..Cpu::default() },
        targets: vec![Target { queue_depth: Some(128), ..Target::default() }],
        ..Facts::default()
    };
    let narrow = ceilings(&facts, None);
    assert_eq!(narrow.binds_reads.as_deref(), Some("PCIe of eth0"));
    facts.nics = vec![nic(100_000, 9000, 31_507_692_307)];
    let wide = ceilings(&facts, None);
    assert_eq!(wide.binds_reads.as_deref(), Some("network"));
    facts.memory.bandwidth_max_bytes_per_second = Some(25_600_000_000);
    assert_eq!(ceilings(&facts, None).binds_writes.as_deref(), Some("memory"));
    // What is measured counts more than what the modules should move.
    let measured = Measured { copy_bytes_per_second: 100e9, threads: 16 };
    assert_eq!(ceilings(&facts, Some(&measured)).binds_writes.as_deref(), Some("network"));
    facts.targets[0].queue_depth = Some(1);
    assert_eq!(ceilings(&facts, None).binds_one_session.as_deref(), Some("one session"));
}

#[test]
fn what_is_not_known_has_no_ceiling() {
    let ceilings = ceilings(&Facts::default(), None);
    assert!(ceilings.layers.iter().all(|layer| layer.read.is_none()), "{ceilings:?}");
    assert_eq!(ceilings.binds_reads, None);
    let page = page(&ceilings);
    assert!(page.contains("Not known: the memory modules"), "{page}");
}

#[test]
fn a_virtual_machine_has_the_clock_that_it_shows() {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/vm-virtio");
    let ceilings = ceilings(&facts(&Tree::open(tree.as_ref()).expect("it is there")), None);
    let processor = layer(&ceilings, "processor");
    assert!(processor.read.is_some(), "{processor:?}");
    assert!(processor.steps[0].starts_with("4 cores of 2494 MHz"), "{processor:?}");
}

#[test]
fn memory_is_measured() {
    let measured = measure();
    assert!(measured.threads > 0);
    // Slower than any machine of this century, faster than none.
    assert!((1e8..1e13).contains(&measured.copy_bytes_per_second), "{measured:?}");
}
