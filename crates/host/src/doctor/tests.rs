use super::*;

#[test]
fn the_checks_can_be_read() {
    let checks = match Checks::embedded() {
        Ok(checks) => checks,
        Err(error) => panic!("{error}"),
    };
    assert!(checks.len() >= 50, "{}", checks.len());
}

#[test]
fn nothing_is_known_of_nothing() {
    let checks = Checks::embedded().expect("the checks can be read");
    let report = examine(&Facts::default(), &checks);
    assert_eq!(report.exit_code(), 2);
    assert_eq!(report.count(State::Broken), 0, "{:#?}", report.looked);
    assert!(report.findings.is_empty());
}
