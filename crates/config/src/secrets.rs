//! Secrets: read from where the configuration says they are, and never shown to anybody.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lunet_front_iscsi::{Guard, User};
use lunet_iscsi::chap::{Account, Secret};
use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;
use zeroize::Zeroizing;

use crate::access::{Access, Login, MAX_SECRET, SecretError, Source, check_secret, same_secrets};
use crate::{Config, HostSecret, Mistake, SecretPlace};

/// Where other programs of this kind look for the secret of an `iscsi://` address, too.
const INITIATOR: &str = "LIBISCSI_CHAP_PASSWORD";
/// The secret by which this host proves itself to subsystems.
const HOST: &str = "LUNET_DHCHAP_SECRET";
/// What a key of TLS begins with.
const TLS_KEY: &str = "NVMeTLSkey-1:";
/// What a token of the REST interface begins with.
const TOKEN: &str = "lunet_";
/// Permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;

/// How long the writer of a pipe has, and how often it is looked whether it has written.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Lets nobody but root look into the memory of this process from now on: no debugger of the same user, and no
/// core dump (PR_SET_DUMPABLE). Called before a secret gets there. It is not taken back.
pub fn guard_memory() {
    // Best effort: a kernel that refuses this is no reason not to serve.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// The files that secrets are read from, as the configuration names them.
pub fn files(config: &Config) -> Vec<PathBuf> {
    let of_login = |login: &Login| match &login.secret {
        Source::File(file) | Source::Read { file: Some(file), .. } => Some(file.clone()),
        _ => None,
    };
    let of_host = |secret: &HostSecret| match &secret.place {
        SecretPlace::File(file) => Some(file.clone()),
        _ => None,
    };
    let hosts = config.nvme.secrets().filter_map(of_host);
    logins(config).filter_map(of_login).chain(hosts).collect()
}

/// Looks whether others may read a configuration that has secrets in it. One that is not there any
/// more, or is no file, has no secrets to lose.
///
/// # Errors
/// A mistake at each of the secrets.
pub fn check_file(config: &Config, file: &Path) -> Result<(), Vec<Mistake>> {
    let mode = fs::metadata(file).map_or(0, |found| found.mode());
    let here = logins(config).filter(|login| matches!(login.secret, Source::Here(_)));
    let hosts = config.nvme.secrets().filter(|secret| secret.place == SecretPlace::Here);
    let text = || exposed("the configuration", file, mode);
    let mistakes: Vec<Mistake> = match mode & OTHERS {
        0 => Vec::new(),
        _ => here
            .map(|login| login.mistake(text()))
            .chain(hosts.map(|secret| secret.mistake(text())))
            .collect(),
    };
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Reads the secrets that are in files and in the environment. Relative paths start where the
/// configuration `file` is.
///
/// # Errors
/// The mistakes, in the order of lines.
pub fn read(config: &mut Config, file: &Path) -> Result<(), Vec<Mistake>> {
    let directory = file.parent().unwrap_or(Path::new(""));
    let mut mistakes = Vec::new();
    let rules = config.targets.iter_mut().map(|target| &mut target.access);
    for login in rules.chain([&mut config.discovery]).flat_map(Access::logins_mut) {
        let found = match &login.secret {
            Source::Here(_) | Source::Read { .. } => continue,
            Source::File(path) => {
                let file = directory.join(path);
                of_configured(&file).map(|secret| (secret, Some(file)))
            }
            Source::Environment(name) => of_environment(name).map(|secret| (secret, None)),
        };
        match found {
            Ok((secret, file)) => login.secret = Source::Read { secret, file },
            Err(why) => mistakes.push(login.mistake(why.to_string())),
        }
    }
    for secret in config.nvme.secrets_mut() {
        if let Err(why) = read_of_host(secret, directory) {
            mistakes.push(secret.mistake(why));
        }
    }
    if mistakes.is_empty() {
        mistakes = same_secrets(&config.targets, &config.discovery);
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Reads a secret of a host.
fn read_of_host(secret: &mut HostSecret, directory: &Path) -> Result<(), String> {
    let text = match &secret.place {
        SecretPlace::Here => return Ok(()),
        SecretPlace::File(path) => {
            let file = directory.join(path);
            is_file(&file).and_then(|()| bytes_of_file(&file)).map_err(|error| error.to_string())?
        }
        SecretPlace::Environment(name) => {
            guard_memory();
            let value =
                env::var_os(name).ok_or_else(|| format!("the environment has no {name}"))?;
            Zeroizing::new(value.into_vec())
        }
    };
    // What is not text is no secret of this form.
    *secret.text = std::str::from_utf8(&text).unwrap_or_default().to_owned();
    secret.check()
}

fn logins(config: &Config) -> impl Iterator<Item = &Login> {
    let rules = config.targets.iter().map(|target| &target.access);
    rules.chain([&config.discovery]).flat_map(Access::logins)
}

fn exposed(what: &str, file: &Path, mode: u32) -> String {
    let (name, mode) = (file.display(), mode & 0o7777);
    format!("others may read {what} (mode {mode:04o}) with the secret in it: chmod 600 {name}")
}

/// Why there is no secret where it should be.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum Unusable {
    #[error("cannot read {path}: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{path} is no file: write the secret into a file of its own")]
    NotAFile { path: PathBuf },
    #[error("{}", exposed(&path.display().to_string(), path, *mode))]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the environment has no {0}")]
    NoVariable(String),
    #[error("{place} {error}")]
    Wrong { place: String, error: SecretError },
    #[error(
        "{place} has no secret of the form DHHC-1:hh:base64: as nvme gen-dhchap-key writes it: {error}"
    )]
    Form { place: String, error: lunet_nvme::auth::SecretError },
    #[error(
        "{place} has no key of the form NVMeTLSkey-1:hh:base64: as nvme gen-tls-key writes it: {error}"
    )]
    TlsForm { place: String, error: lunet_nvme::auth::SecretError },
    #[error("{} has no token: it is one line that begins with lunet_", .0.display())]
    NoToken(PathBuf),
    #[error("{0} has a key of TLS, and no secret: give it by --tls-key-file")]
    TlsKey(String),
    #[error(
        "{0} has a secret of DH-HMAC-CHAP, and no key of TLS: give it by --secret-file, or LUNET_DHCHAP_SECRET"
    )]
    NoTlsKey(String),
}

/// The secret in a file that a configuration names. Whoever may only ask what a configuration would change must not
/// have a device opened, or somebody's pipe read, so it has to be a regular file.
fn of_configured(path: &Path) -> Result<Secret, Unusable> {
    is_file(path)?;
    of_file(path)
}

/// Refuses what is no regular file. It is looked at first, because opening some devices has effects.
fn is_file(path: &Path) -> Result<(), Unusable> {
    let unreadable = |error| Unusable::Unreadable { path: path.to_owned(), error };
    match fs::metadata(path).map_err(unreadable)?.is_file() {
        true => Ok(()),
        false => Err(Unusable::NotAFile { path: path.to_owned() }),
    }
}

/// The only line of a file that nobody but its owner may read. It may be a pipe, which is not waited for without end.
///
/// # Errors
/// What is wrong with the file or its content, or with who may read it.
pub fn of_file(path: &Path) -> Result<Secret, Unusable> {
    let mut bytes = bytes_of_file(path)?;
    let secret = Secret::new(std::mem::take(&mut *bytes));
    let wrong = |error| Unusable::Wrong { place: path.display().to_string(), error };
    check(&secret).map_err(wrong)?;
    Ok(secret)
}

/// A secret of either protocol.
pub enum Key {
    /// Of CHAP.
    Chap(Secret),
    /// Of DH-HMAC-CHAP.
    DhChap(lunet_nvme::auth::Secret),
}

/// The same, of the protocol that its form shows.
///
/// # Errors
/// See [`of_file`].
pub fn any_of_file(path: &Path) -> Result<Key, Unusable> {
    let bytes = bytes_of_file(path)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) if text.starts_with("DHHC-1:") => {
            key(text, || path.display().to_string()).map(Key::DhChap)
        }
        Ok(text) if text.starts_with(TLS_KEY) => Err(Unusable::TlsKey(path.display().to_string())),
        _ => of_file(path).map(Key::Chap),
    }
}

/// The same as text, for programs of this machine that take it from a file.
///
/// # Errors
/// See [`of_file`].
pub fn text_of_file(path: &Path) -> Result<Zeroizing<String>, Unusable> {
    let mut bytes = bytes_of_file(path)?;
    let place = || path.display().to_string();
    if bytes.starts_with(TLS_KEY.as_bytes()) {
        return Err(Unusable::TlsKey(place()));
    }
    let text = String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new);
    let text = text.map_err(|_| Unusable::Wrong { place: place(), error: SecretError::Lines })?;
    match text.starts_with("DHHC-1:") {
        true => key(&text, place).map(drop)?,
        false => {
            let secret = Secret::new(text.as_bytes().to_vec());
            check(&secret).map_err(|error| Unusable::Wrong { place: place(), error })?;
        }
    }
    Ok(text)
}

/// A host's key of TLS.
///
/// # Errors
/// See [`of_file`].
pub fn tls_key_of_file(path: &Path) -> Result<lunet_nvme::auth::Secret, Unusable> {
    let bytes = bytes_of_file(path)?;
    tls_key(path, std::str::from_utf8(&bytes).unwrap_or_default())
}

/// The same as text, for programs of this machine that take it from a file.
///
/// # Errors
/// See [`of_file`].
pub fn tls_text_of_file(path: &Path) -> Result<Zeroizing<String>, Unusable> {
    let mut bytes = bytes_of_file(path)?;
    tls_key(path, std::str::from_utf8(&bytes).unwrap_or_default())?;
    Ok(Zeroizing::new(String::from_utf8(std::mem::take(&mut *bytes)).unwrap_or_default()))
}

fn tls_key(path: &Path, text: &str) -> Result<lunet_nvme::auth::Secret, Unusable> {
    let place = || path.display().to_string();
    if text.starts_with("DHHC-1:") {
        return Err(Unusable::NoTlsKey(place()));
    }
    let key = lunet_nvme::auth::Secret::parse(lunet_nvme::auth::Purpose::Tls, text);
    key.map_err(|error| Unusable::TlsForm { place: place(), error })
}

/// A token of the REST interface.
///
/// # Errors
/// See [`of_file`].
pub fn token_of_file(path: &Path) -> Result<Zeroizing<String>, Unusable> {
    let bytes = bytes_of_file(path)?;
    let is_one =
        |text: &str| text.starts_with(TOKEN) && text.bytes().all(|byte| byte.is_ascii_graphic());
    match std::str::from_utf8(&bytes) {
        Ok(text) if is_one(text) => Ok(Zeroizing::new(text.to_owned())),
        _ => Err(Unusable::NoToken(path.to_owned())),
    }
}

/// The secret by which this host proves itself to subsystems, if the environment has it.
///
/// # Errors
/// It is no secret.
pub fn of_host() -> Result<Option<lunet_nvme::auth::Secret>, Unusable> {
    let Some(value) = env::var_os(HOST) else { return Ok(None) };
    guard_memory();
    let value = Zeroizing::new(value.into_vec());
    let text = std::str::from_utf8(&value).unwrap_or_default();
    key(text, || HOST.to_owned()).map(Some)
}

fn key(text: &str, place: impl FnOnce() -> String) -> Result<lunet_nvme::auth::Secret, Unusable> {
    let secret = lunet_nvme::auth::Secret::parse(lunet_nvme::auth::Purpose::DhChap, text);
    secret.map_err(|error| Unusable::Form { place: place(), error })
}

/// The same as bytes, which may be no secret.
fn bytes_of_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, Unusable> {
    guard_memory();
    let failed = |error| Unusable::Unreadable { path: path.to_owned(), error };
    // A terminal, or a pipe that nobody writes to, is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let mut file = File::from(file);
    let mode = file.metadata().map_err(failed)?.mode();
    if mode & OTHERS != 0 {
        return Err(Unusable::Exposed { path: path.to_owned(), mode });
    }
    // A line break belongs to the file, not to the secret.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_SECRET + 3));
    let until = Instant::now() + PATIENCE;
    loop {
        match file.by_ref().take((MAX_SECRET + 3 - bytes.len()) as u64).read_to_end(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(PAUSE);
            }
            other => break other.map(drop).map_err(failed)?,
        }
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(bytes)
}

/// The secret of the user that an `iscsi://` address names without one, if the environment has it.
/// Whether it is one, the target says.
pub fn of_initiator() -> Option<Secret> {
    guard_memory();
    env::var_os(INITIATOR).map(|value| Secret::new(value.into_vec()))
}

fn of_environment(name: &str) -> Result<Secret, Unusable> {
    guard_memory();
    let value = env::var_os(name).ok_or_else(|| Unusable::NoVariable(name.to_owned()))?;
    let secret = Secret::new(value.into_vec());
    check(&secret).map_err(|error| Unusable::Wrong { place: name.to_owned(), error })?;
    Ok(secret)
}

fn check(secret: &Secret) -> Result<(), SecretError> {
    check_secret(secret.len())?;
    if secret.has_line_break() {
        return Err(SecretError::Lines);
    }
    Ok(())
}

/// The rules in the target's terms. A user whose secret was not read cannot log in.
pub fn access(rules: &Access) -> lunet_front_iscsi::Access {
    let account = |login: &Login| {
        let secret = login.secret.known()?.clone();
        Some(Account { name: login.name.clone(), secret })
    };
    let users = rules.users.iter().filter_map(|user| {
        Some(User { account: account(&user.login)?, initiators: user.initiators.clone() })
    });
    let guard = Guard {
        algorithms: rules.algorithms,
        users: users.collect(),
        mutual: rules.mutual.as_ref().and_then(account),
    };
    lunet_front_iscsi::Access {
        initiators: rules.initiators.clone(),
        guard: (!rules.users.is_empty()).then_some(guard),
        luns: rules.luns.clone(),
        open: rules.open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;
    use rustix::fs::FileType;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.l:x'\n";

    fn write(dir: &TempDir, name: &str, text: impl AsRef<[u8]>, mode: u32) {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn user(line: &str) -> Config {
        config::check(&format!("{TARGET}[[target.user]]\nname = 'a'\n{line}\n")).unwrap()
    }

    fn mistake(config: &mut Config, dir: &TempDir) -> String {
        let mistakes = read(config, &dir.path().join("lunet.toml")).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        mistakes[0].to_string().replace(dir.path().to_str().unwrap(), "DIR")
    }

    #[test]
    fn a_secret_is_the_only_line_of_its_file() {
        let dir = TempDir::new().unwrap();
        for (text, wrong) in [
            ("a secret of 16 b", None),
            ("a secret of 16 b\n", None),
            ("a secret of 16 b\r\n", None),
            (" two spaces are ", None),
            ("eleven byte\n", Some("DIR/s is a secret of 11 bytes; it must have 12 to 255")),
            ("", Some("DIR/s is a secret of 0 bytes")),
            ("a secret of 16 b\n\n", Some("DIR/s has more than one line")),
            ("first line\nsecond line\n", Some("DIR/s has more than one line")),
            (&*"x".repeat(300), Some("DIR/s is a secret of more than 255 bytes")),
        ] {
            write(&dir, "s", text, 0o600);
            let mut config = user("secret-file = 's'");
            let Some(words) = wrong else {
                read(&mut config, &dir.path().join("lunet.toml")).unwrap();
                let rules = access(&config.targets[0].access);
                let secret = Secret::new(text.trim_end_matches(['\r', '\n']).into());
                assert_eq!(rules.guard.unwrap().users[0].account.secret, secret);
                continue;
            };
            let found = mistake(&mut config, &dir);
            let start = format!("5: target.user.secret-file: {words}");
            assert!(found.starts_with(&start), "{found}");
            // It is as if nobody had that name.
            let rules = access(&config.targets[0].access);
            assert!(rules.guard.unwrap().users.is_empty());
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = TempDir::new().unwrap();
        for mode in [0o644, 0o640, 0o604, 0o660] {
            write(&dir, "s", "a secret of 16 b", mode);
            let words = format!(
                "5: target.user.secret-file: others may read DIR/s (mode {mode:04o}) with the secret \
                 in it: chmod 600 DIR/s"
            );
            assert_eq!(mistake(&mut user("secret-file = 's'"), &dir), words);
        }
        let missing = mistake(&mut user("secret-file = 'none'"), &dir);
        assert!(missing.contains("cannot read DIR/none: No such file"), "{missing}");
        // So is a configuration with a secret, and only such a one.
        let here = user("secret = 'a secret of 16 b'");
        let path = dir.path().join("lunet.toml");
        write(&dir, "lunet.toml", "", 0o644);
        let found = check_file(&here, &path).unwrap_err()[0].to_string();
        let words = "5: target.user.secret: others may read the configuration (mode 0644)";
        assert!(found.starts_with(words), "{found}");
        assert_eq!(check_file(&user("secret-file = 's'"), &path), Ok(()));
        write(&dir, "lunet.toml", "", 0o600);
        assert_eq!(check_file(&here, &path), Ok(()));
    }

    /// A configuration names a pipe, a terminal, a device or a folder: nothing of it is opened, and nobody waits.
    #[test]
    fn what_a_configuration_names_is_a_regular_file() {
        let dir = TempDir::new().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let (_terminal, name) = terminal();
        fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink(&pipe, dir.path().join("link")).unwrap();
        for path in ["pipe", "link", "folder", "/dev/null", "/dev/tty", name.as_str()] {
            let found = mistake(&mut user(&format!("secret-file = '{path}'")), &dir);
            assert!(found.contains("is no file: write the secret into a file"), "{found}");
            let host = format!(
                "[[portal]]\naddress = '127.0.0.1:0'\ntransport = ['nvme-tcp']\n[[subsystem]]\nnqn = 'nqn.2026-11.l:x'\n\
                 hosts = [{{ nqn = 'nqn.2026-11.l:h', secret-file = '{path}' }}]\n"
            );
            let found = mistake(&mut config::check(&host).unwrap(), &dir);
            assert!(found.contains("is no file: write the secret into a file"), "{found}");
        }
    }

    /// What the command line names may be a pipe or a terminal. Nobody to write to it is waited for.
    #[test]
    fn a_pipe_without_a_writer_has_no_secret_and_is_not_waited_for() {
        let dir = TempDir::new().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let told = of_file(&pipe).unwrap_err().to_string();
        assert!(told.contains("is a secret of 0 bytes"), "{told}");
        let reads = rustix::fs::open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let mut writer = File::options().write(true).open(&pipe).unwrap();
        io::Write::write_all(&mut writer, b"a secret of 16 b\n").unwrap();
        drop(writer);
        of_file(&pipe).unwrap();
        drop(reads);
    }

    /// A terminal, which this process does not get as its own by that, and its name.
    fn terminal() -> (std::os::fd::OwnedFd, String) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        (master, name)
    }

    #[test]
    fn nobody_looks_into_the_memory_of_who_has_a_secret() {
        let dir = TempDir::new().unwrap();
        write(&dir, "s", "a secret of 16 b\n", 0o600);
        of_file(&dir.path().join("s")).unwrap();
        let behaviour = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(behaviour, DumpableBehavior::NotDumpable);
    }

    #[test]
    fn a_secret_may_be_in_the_environment() {
        let dir = TempDir::new().unwrap();
        // Cargo sets this one for every test.
        let mut config = user("secret-env = 'CARGO_MANIFEST_DIR'");
        read(&mut config, &dir.path().join("lunet.toml")).unwrap();
        let known = config.targets[0].access.users[0].login.secret.known().unwrap();
        assert_eq!(*known, Secret::new(env!("CARGO_MANIFEST_DIR").into()));
        let missing = mistake(&mut user("secret-env = 'LUNET_NO_SUCH_THING'"), &dir);
        let words = "5: target.user.secret-env: the environment has no LUNET_NO_SUCH_THING";
        assert_eq!(missing, words);
    }

    #[test]
    fn one_secret_in_both_directions_is_found_wherever_it_is() {
        let dir = TempDir::new().unwrap();
        write(&dir, "s", "a secret of 16 b\n", 0o600);
        let text = format!(
            "{TARGET}[[target.user]]\nname = 'a'\nsecret = 'another secret'\n\
             mutual = 'x'\n[discovery]\nuser = [{{ name = 'b', secret = 'a secret of 16 b' }}]\n"
        );
        let text =
            text.replace("mutual = 'x'\n", "[target.mutual]\nname = 'm'\nsecret-file = 's'\n");
        let mut config = config::check(&text).unwrap();
        let found = mistake(&mut config, &dir);
        let words = "8: target.mutual.secret-file: is also the secret of user \"b\" (line 10): who \
                     knows it could pose as the target";
        assert_eq!(found, words);
    }
}
