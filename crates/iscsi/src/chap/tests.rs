use super::*;
use alloc::format;
use proptest::prelude::*;

/// Computed with Python's hashlib from identifier, secret and challenge.
#[test]
fn responses_are_those_of_another_implementation() {
    let first = (0x27, b"a secret of sixt".to_vec(), (0..16).collect::<Vec<u8>>());
    let second = (255, b"twelve bytes".to_vec(), (200..240).collect::<Vec<u8>>());
    let known = [
        (Algorithm::Md5, &first, "0x3fd128f318a74644b556b8daa3813b56"),
        (Algorithm::Md5, &second, "0x78a9429c937a75965c701e4417d01687"),
        (Algorithm::Sha1, &first, "0x47a3cdfe3101eb002d96b6a16adffbe83e2f7a23"),
        (Algorithm::Sha1, &second, "0x7273a9ed794e59523b4189e43ecc9352b148819a"),
        (
            Algorithm::Sha256,
            &first,
            "0x298a07c76f328c6c16243fd8557e6bddba5a983b29087a8367145b65e5f75364",
        ),
        (
            Algorithm::Sha256,
            &second,
            "0x979d9ee912f60442a9ccebb3b998448eb129496795c90afc64d1426f6c229d34",
        ),
        (
            Algorithm::Sha3,
            &first,
            "0x24105b5b945f34b24c98f8bcdb84df8296ab143b5dd84a06bf4090c20fe69156",
        ),
        (
            Algorithm::Sha3,
            &second,
            "0x3e2ec4f3cf55e90ec5e502d64da1496b44282d74b90442fd56385e91cccff9f5",
        ),
    ];
    for (algorithm, (id, secret, challenge), expected) in known {
        let response = Secret::new(secret.clone()).respond(algorithm, *id, challenge);
        assert_eq!(binary(response.bytes()), expected, "{algorithm:?}");
        assert_eq!(response.bytes().len(), algorithm.digest_len());
        let mut bytes = response.bytes().to_vec();
        assert!(response.is(&bytes));
        assert!(!response.is(&bytes[1..]) && !response.is(&[]));
        bytes[0] ^= 1;
        assert!(!response.is(&bytes));
    }
}

#[test]
fn the_first_algorithm_of_the_list_that_will_do_is_taken() {
    let all = Algorithms::ALL;
    assert_eq!(all.offer(), "8,7,6,5");
    for (list, first) in [
        ("5", Some(Algorithm::Md5)),
        ("5,6,7,8", Some(Algorithm::Md5)),
        ("8,7,6,5", Some(Algorithm::Sha3)),
        ("7,5", Some(Algorithm::Sha256)),
        ("0x6,05", Some(Algorithm::Sha1)),
        ("9,5,none,", Some(Algorithm::Md5)),
        ("9", None),
        ("", None),
    ] {
        assert_eq!(all.first_of(list), first, "{list}");
    }
    let strong: Algorithms = [Algorithm::Sha256, Algorithm::Sha3].into_iter().collect();
    assert_eq!(strong.first_of("5,6"), None);
    assert_eq!(strong.first_of("5,6,7,8"), Some(Algorithm::Sha256));
    assert_eq!(strong.offer(), "8,7");
    assert!(Algorithms::from_iter([]).is_empty() && !strong.is_empty());
    assert!(one("5,6").is_none());
}

#[test]
fn a_secret_is_not_printed() {
    let secret = Secret::new(b"do not tell them".to_vec());
    let account = Account { name: "me".into(), secret: secret.clone() };
    assert_eq!(
        format!("{secret:?} {account:?}"),
        "Secret Account { name: \"me\", secret: Secret }"
    );
    assert_eq!(secret, Secret::new(b"do not tell them".to_vec()));
    assert_ne!(secret, Secret::new(b"do not tell him".to_vec()));
}

#[test]
fn binary_values_are_hexadecimal_or_base64() {
    let sixteen: Vec<u8> = (0..16).collect();
    assert_eq!(parse_binary("0x000102030405060708090a0B0C0D0e0f"), Some(sixteen.clone()));
    assert_eq!(parse_binary("0bAAECAwQFBgcICQoLDA0ODw=="), Some(sixteen));
    assert_eq!(parse_binary("0B//79"), Some([0xff, 0xfe, 0xfd].to_vec()));
    assert_eq!(parse_binary("0XfF"), Some([0xff].to_vec()));
    assert_eq!(parse_binary("0bAA=="), Some([0].to_vec()));
    let wrong = [
        "",
        "0",
        "0x",
        "0b",
        "5",
        "00",
        "0x0",
        "0x123",
        "0x0g",
        "0x+1",
        "0bA",
        "0bAAA",
        "0bAAA=A",
        "0b====",
        "0bA===",
        "0bAA==AA==",
        "0bAA A",
        "0y00",
        "\u{e4}x00",
    ];
    for value in wrong {
        assert_eq!(parse_binary(value), None, "{value}");
    }
    for (len, allowed) in [(MAX_BINARY, true), (MAX_BINARY + 1, false), (4000, false)] {
        assert_eq!(parse_binary(&format!("0x{}", "5a".repeat(len))).is_some(), allowed);
    }
    assert_eq!(parse_binary(&format!("0b{}", "A".repeat(1364))).map(|b| b.len()), Some(1023));
    assert_eq!(parse_binary(&format!("0b{}", "A".repeat(1368))), None);
    assert_eq!((parse_id("0x1f"), parse_id("255"), parse_id("256")), (Some(31), Some(255), None));
}

proptest! {
    #[test]
    fn binary_values_round_trip(bytes in proptest::collection::vec(any::<u8>(), 1..=MAX_BINARY)) {
        prop_assert_eq!(parse_binary(&binary(&bytes)), Some(bytes));
    }

    #[test]
    fn any_value_is_read_without_a_panic(value in "(0[xXbB])?.{0,80}") {
        if let Some(bytes) = parse_binary(&value) {
            prop_assert!(!bytes.is_empty());
        }
        let _ = (parse_id(&value), Algorithms::ALL.first_of(&value));
    }
}
