//! Takes secrets out of what is captured: passwords, keys, tokens, serial numbers.

use std::cmp::Reverse;

use serde_json::Value as Json;

use super::{Command, Output, Source, kernel_log};

/// What stands in a secret's place.
pub const MASK: &str = "***";

/// Files that hold nothing but a secret, by the end of their path.
const SECRET_FILES: &[&str] = &[
    "/password",
    "/password_mutual",
    "/dhchap_key",
    "/dhchap_ctrl_key",
    "/dhchap_secret",
    "/dhchap_ctrl_secret",
    "/serial",
    "/attr_serial",
    "/product_serial",
    "/board_serial",
    "/chassis_serial",
    "/product_uuid",
    "/vpd_pg80",
    "/wwid",
];

/// Words in the name of a value that must not be seen.
const SECRET_NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "psk",
    "dhchap_key",
    "dhchap_ctrl_key",
    "apikey",
    "api_key",
    "private",
    "serial",
    "serial number",
    "asset tag",
    "netroot",
];

/// A file's text without secrets.
pub(super) fn file(path: &str, content: &str) -> String {
    if SECRET_FILES.iter().any(|end| path.ends_with(end)) {
        return match content.trim().is_empty() {
            true => content.to_owned(),
            false => format!("{MASK}\n"),
        };
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    // What device-mapper devices are made of names the drive's serial number.
    if let (true, Some((kind, _))) = (path.ends_with("/dm/uuid"), content.split_once('-')) {
        return format!("{kind}-{MASK}\n");
    }
    if path.ends_with("/ctl.conf") {
        return content.split_inclusive('\n').map(ctl_conf).collect();
    }
    if path.starts_with("/etc/ceph/") {
        return content.split_inclusive('\n').map(ceph).collect();
    }
    // SCST's users: `name secret`, on the first line.
    if name.starts_with("IncomingUser") || name.starts_with("OutgoingUser") {
        return content.lines().map(|line| chap_user(line) + "\n").collect();
    }
    text(content)
}

fn chap_user(line: &str) -> String {
    match line.split_once(' ') {
        Some((user, _)) => format!("{user} {MASK}"),
        None => line.to_owned(),
    }
}

/// A line of Ceph's configuration or of a keyring, `key = SECRET`: other names have the word without being secrets.
fn ceph(line: &str) -> String {
    match line.split_once('=') {
        Some((name, _)) if name.trim() == "key" => format!("{name}= {MASK}\n"),
        _ => text(line),
    }
}

/// A line of FreeBSD's /etc/ctl.conf, `chap USER SECRET` or `chap-mutual USER SECRET USER SECRET`: what follows the
/// user's name is masked. The capture script has masked it before.
fn ctl_conf(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| matches!(word.trim_matches('{'), "chap" | "chap-mutual"));
    let Some(at) = at else { return text(line) };
    let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
    let masks = if words[at].ends_with("mutual") { 3 } else { 1 };
    let kept = words[..(at + 2).min(words.len())].join(" ");
    let end = if words.last().is_some_and(|last| last.ends_with('}')) { " }" } else { "" };
    format!("{indent}{kept}{}{end}\n", format!(" \"{MASK}\"").repeat(masks))
}

/// A command's output without secrets, and without what nobody asked for.
pub(super) fn output(command: &Command, stdout: &str) -> String {
    let args: Vec<&str> = command.args().iter().map(String::as_str).collect();
    match (command.program(), args.as_slice()) {
        ("dmesg", _) => stdout
            .split_inclusive('\n')
            .filter(|line| kernel_log::means_something(line))
            .collect::<String>(),
        ("nvme", _) => only(stdout, NVME),
        ("smartctl", ["-a", "-j", ..]) => only(stdout, SMART),
        ("smartctl", _) => stdout
            .split_inclusive('\n')
            .filter(|line| {
                !["Serial", "LU WWN", "Logical Unit id"].iter().any(|of| line.starts_with(of))
            })
            .collect(),
        ("multipath", _) => stdout.split_inclusive('\n').map(without_wwid).collect(),
        ("ip", ["route", ..]) => text(stdout),
        ("ip", _) => only(stdout, IP),
        ("midclt", ["call", "system.advanced.config"]) => only(stdout, &["kernel_extra_options"]),
        ("midclt", ["call", "initshutdownscript.query"]) => scripts(stdout),
        ("midclt", ["call", "tunable.query"]) => {
            only(stdout, &["type", "var", "value", "orig_value", "enabled"])
        }
        ("midclt", ["call", "iscsi.global.sessions"]) => {
            only(stdout, &["initiator", "initiator_addr", "iser", "target"])
        }
        _ => text(stdout),
    }
}

/// What is asked of network interfaces.
const IP: &[&str] = &[
    "ifname",
    "mtu",
    "max_mtu",
    "addr_info",
    "local",
    "prefixlen",
    "linkinfo",
    "info_kind",
    "info_data",
    "id",
];

/// What is asked of SATA and SAS drives: serial numbers and world wide names are in the very same answers.
const SMART: &[&str] = &[
    "smart_status",
    "passed",
    "power_on_time",
    "hours",
    "temperature",
    "current",
    "drive_trip",
    "op_limit_max",
    "interface_speed",
    "max",
    "string",
    "zoned_device",
    "zoned",
    "capabilities",
    "ata_sct_erc",
    "read",
    "write",
    "deciseconds",
    "ata_smart_attributes",
    "table",
    "id",
    "name",
    "value",
    "raw",
    "when_failed",
    "scsi_grown_defect_list",
    "scsi_error_counter_log",
    "total_uncorrected_errors",
    "scsi_non_medium_error_count",
    "ata_smart_error_log",
    "summary",
    "count",
    "scsi_percentage_used_endurance_indicator",
    "ata_smart_self_test_log",
    "standard",
    "status",
    "scsi_self_test_0",
    "result",
];

/// What is asked of NVMe drives: serial numbers are in the very same answers.
const NVME: &[&str] = &[
    "nlbaf",
    "flbas",
    "lbafs",
    "ms",
    "ds",
    "rp",
    "apsta",
    "wctemp",
    "psds",
    "max_power",
    "max_power_scale",
    "mxps",
    "non-operational_state",
    "nops",
    "entry_lat",
    "exit_lat",
    "critical_warning",
    "temperature",
    "avail_spare",
    "percent_used",
    "percentage_used",
    "media_errors",
    "warning_temp_time",
    "critical_comp_time",
    "value",
    "cctemp",
    "thm_temp1_trans_count",
    "thm_temp2_trans_count",
    "thm_temp1_total_time",
    "thm_temp2_total_time",
    "unsafe_shutdowns",
    "num_err_log_entries",
    "power_on_hours",
    "power_cycles",
    "controller_busy_time",
    "data_units_read",
    "data_units_written",
    "host_read_commands",
    "host_write_commands",
    "spare_thresh",
];

/// Keeps only the members of these names, however deep. What is no JSON is taken away altogether.
fn only(text: &str, names: &[&str]) -> String {
    let Ok(mut json) = serde_json::from_str::<Json>(text) else { return String::new() };
    keep(&mut json, names);
    format!("{json}\n")
}

/// `mpatha (3600a098000aa02e1) dm-3 NETAPP,LUN`
fn without_wwid(line: &str) -> String {
    match (line.split_once('('), line.split_once(')')) {
        (Some((name, _)), Some((_, rest))) if !name.contains('=') => {
            format!("{name}({MASK}){rest}")
        }
        _ => line.to_owned(),
    }
}

fn keep(json: &mut Json, names: &[&str]) {
    match json {
        Json::Object(members) => {
            members.retain(|name, _| names.contains(&name.as_str()));
            members.values_mut().for_each(|member| keep(member, names));
        }
        Json::Array(all) => all.iter_mut().for_each(|member| keep(member, names)),
        _ => {}
    }
}

/// Scripts at start may hold anything. Those that have to do with settings are kept, and the
/// secrets in them are masked.
fn scripts(text: &str) -> String {
    let about =
        ["sysctl", "/sys/", "/proc/", "modprobe", "midclt", "ethtool", "zfs", "nvme", "blockdev"];
    let Ok(mut json) = serde_json::from_str::<Json>(text) else { return String::new() };
    keep(&mut json, &["when", "command", "script", "enabled"]);
    for script in json.as_array_mut().into_iter().flatten() {
        let Some(command) = script["command"].as_str() else { continue };
        let shown = match about.iter().any(|word| command.contains(word)) {
            true => self::text(command),
            false if command.is_empty() => String::new(),
            false => MASK.to_owned(),
        };
        script["command"] = shown.into();
    }
    format!("{json}\n")
}

/// Any text without secrets: the value after a name that says that it is one is masked.
pub fn text(content: &str) -> String {
    let mut out = String::with_capacity(content.len());
    for line in content.split_inclusive('\n') {
        mask_line(&mut out, line);
    }
    out
}

/// Copies a line; the value after a secret's name and a `=` or `:` becomes the mask.
fn mask_line(out: &mut String, line: &str) {
    let mut rest = line;
    loop {
        let lower = rest.to_ascii_lowercase();
        let found = SECRET_NAMES.iter().filter_map(|name| {
            let at = lower.find(name)?;
            Some((at, at + name.len()))
        });
        // The first one; the longest, where one name is the start of another.
        let found = found.min_by_key(|&(at, end)| (at, Reverse(end)));
        let Some((start, end)) = found else { break };
        // The rest of the name, then a separator, then the value.
        let name = end + rest[end..].find(|c: char| !is_name(c)).unwrap_or(rest.len() - end);
        let after = rest[name..].trim_start_matches([' ', '\t', '"', '\'']);
        if !after.starts_with(['=', ':']) {
            // `--password hunter2`
            let option = rest[..start].trim_end_matches(is_name).len();
            if rest[option..].starts_with('-') && rest[name..].starts_with(' ') {
                out.push_str(&rest[..=name]);
                rest = mask_value(out, &rest[name + 1..]);
                continue;
            }
            out.push_str(&rest[..name]);
            rest = &rest[name..];
            if rest.is_empty() {
                return;
            }
            continue;
        }
        let value = after[1..].trim_start_matches([' ', '\t', '=']);
        out.push_str(&rest[..rest.len() - value.len()]);
        rest = mask_value(out, value);
    }
    out.push_str(rest);
}

/// Masks the value that the text starts with; returns what is behind it.
fn mask_value<'a>(out: &mut String, text: &'a str) -> &'a str {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    if let Some(quote) = quote {
        let inner = &text[1..];
        let end = inner.find(quote).unwrap_or(inner.len());
        out.push(quote);
        if end > 0 {
            out.push_str(MASK);
        }
        return &inner[end..];
    }
    if let Some(word) =
        ["null", "true", "false", "[", "{", "<"].iter().find(|w| text.starts_with(**w))
    {
        out.push_str(word);
        return &text[word.len()..];
    }
    let end = text.find([' ', '\t', ',', '\n', '\r', '}', ']', ';']).unwrap_or(text.len());
    if end > 0 {
        out.push_str(MASK);
    }
    &text[end..]
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '(' | ')' | '[' | ']')
}

/// A source without its secrets. Masking it twice changes nothing.
pub(crate) struct Masked<'a>(pub(crate) &'a dyn Source);

impl Source for Masked<'_> {
    fn read(&self, path: &str) -> Option<String> {
        Some(file(path, &self.0.read(path)?))
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        self.0.list(directory)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.0.link(path)
    }

    fn run(&self, command: &Command) -> Option<Output> {
        let told = self.0.run(command)?;
        Some(Output { stdout: output(command, &told.stdout), ..told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_values_by_their_names() {
        for (from, to) in [
            ("node.session.auth.password = hunter2\n", "node.session.auth.password = ***\n"),
            ("node.session.auth.password_in=hunter2", "node.session.auth.password_in=***"),
            ("a rd.iscsi.password=hunter2 quiet", "a rd.iscsi.password=*** quiet"),
            (
                r#"{"peersecret": "hunter2", "user": "joe"}"#,
                r#"{"peersecret": "***", "user": "joe"}"#,
            ),
            (r#"{"secret":null,"x":1}"#, r#"{"secret":null,"x":1}"#),
            ("secret = \"\"\n", "secret = \"\"\n"),
            ("Serial Number: S5RTNC0T104269\n", "Serial Number: ***\n"),
            ("login --password hunter2 now\n", "login --password *** now\n"),
            ("the secretary writes\n", "the secretary writes\n"),
            ("password", "password"),
        ] {
            assert_eq!(text(from), to);
            assert_eq!(text(&text(from)), to, "masked twice");
        }
    }

    #[test]
    fn hides_files_that_are_secrets() {
        assert_eq!(file("/x/acls/iqn/auth/password", "hunter2\n"), "***\n");
        assert_eq!(file("/x/acls/iqn/auth/password", "\n"), "\n");
        assert_eq!(file("/scst/IncomingUser1", "joe hunter2\n[key]\n"), "joe ***\n[key]\n");
    }

    #[test]
    fn hides_secrets_of_freebsds_target() {
        for (from, to) in [
            ("\tchap user hunter2hunter2\n", "\tchap user \"***\"\n"),
            ("\tchap \"user\" \"***\"\n", "\tchap \"user\" \"***\"\n"),
            (
                "\tchap-mutual \"a\" \"hunter2\" \"b\" \"hunter2\"\n",
                "\tchap-mutual \"a\" \"***\" \"***\" \"***\"\n",
            ),
            (
                "auth-group a { chap \"user\" \"hunter2hunter2\" }\n",
                "auth-group a { chap \"user\" \"***\" }\n",
            ),
            ("\tpath /dev/zvol/tank/chap\n", "\tpath /dev/zvol/tank/chap\n"),
        ] {
            assert_eq!(file("/etc/ctl.conf", from), to);
        }
    }

    #[test]
    fn keeps_of_a_drive_what_was_asked() {
        let command = Command::new("nvme", &["id-ctrl", "-o", "json", "/dev/nvme0"]);
        let told =
            r#"{"sn":"S5RTNC0T104269","subnqn":"nqn:S5RTNC0T104269","psds":[{"max_power":9}]}"#;
        assert_eq!(output(&command, told), "{\"psds\":[{\"max_power\":9}]}\n");
    }

    #[test]
    fn hides_scripts_that_set_nothing() {
        let command = Command::new("midclt", &["call", "initshutdownscript.query"]);
        let told = r#"[{"when":"POSTINIT","command":"curl -u joe:hunter2 http://x"},
            {"when":"POSTINIT","command":"echo 1 > /sys/module/zfs/parameters/x; PASSWORD=hunter2"}]"#;
        let masked = output(&command, told);
        assert!(!masked.contains("hunter2"), "{masked}");
        assert!(masked.contains("/sys/module/zfs"), "{masked}");
    }
}
