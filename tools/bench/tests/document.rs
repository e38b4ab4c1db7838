//! docs/bench-json.md says what the files hold: the example is read, and every field is named in the text.

use std::collections::BTreeSet;

use lunet_bench::model::Results;
use serde_json::Value;

const TEXT: &str = include_str!("../../../docs/bench-json.md");
const EXAMPLE: &str = include_str!("../../../docs/bench-example.json");

fn keys(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                all.insert(key.clone());
                keys(value, all);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, all)),
        _ => {}
    }
}

#[test]
fn the_example_is_read_and_written_as_it_stands() {
    let results = Results::from_json(EXAMPLE, "the example").expect("it is right");
    let shown: Value = serde_json::from_str(EXAMPLE).expect("it is JSON");
    let written: Value = serde_json::from_str(&results.to_json()).expect("so is this");
    // Field by field: a field that the program writes and the example lacks is found as well.
    let both = shown
        .as_object()
        .expect("fields")
        .keys()
        .chain(written.as_object().expect("fields").keys());
    for key in both {
        assert_eq!(shown.get(key), written.get(key), "{key}");
    }
}

#[test]
fn every_field_is_named() {
    let mut all = BTreeSet::new();
    keys(&serde_json::from_str(EXAMPLE).expect("it is JSON"), &mut all);
    assert!(all.len() > 80, "the example shows every field: {}", all.len());
    for key in all {
        assert!(TEXT.contains(&format!("`{key}`")), "{key} is not described");
    }
}

#[test]
fn every_word_is_one_that_is_read() {
    // Words for which the document names all values: each is put into the example in turn.
    let lists = [
        (
            "\"bound\": \"drive\"",
            "limit throttling quota client-cpu server-cpu machine-cpu digest drive drive-latency network network-latency memory protocol queue-depth single-session",
        ),
        ("\"kind\": \"drive\"", "memory cpu network drive protocol limit"),
        ("\"kind\": \"file\"", "file directory block-device iscsi"),
        ("\"sync\": \"cached\"", "cached each-write"),
        ("\"pattern\": \"random\"", "random sequential"),
        ("\"role\": \"server\"", "client server bystander"),
        ("\"unit\": \"IOPS\"", "MiB/s IOPS"),
    ];
    for (place, words) in lists {
        let (key, _) = place.split_once(": ").expect("a field");
        assert!(EXAMPLE.contains(place), "{place}");
        for word in words.split(' ') {
            assert!(TEXT.contains(&format!("`{word}`")), "{word} is not described");
            let changed = EXAMPLE.replacen(place, &format!("{key}: \"{word}\""), 1);
            Results::from_json(&changed, word).expect(word);
        }
        let changed = EXAMPLE.replacen(place, &format!("{key}: \"nonsense\""), 1);
        Results::from_json(&changed, "nonsense").expect_err("that is no word of it");
    }
}
