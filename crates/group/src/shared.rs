//! The configuration that all gateways of a group serve by, as an object of the cluster beside the record.
//!
//! The object is text: a line that says its format and revision, which TOML takes for a comment, and what the gateways
//! serve behind it. The revision is an attribute, too, which replacements compare. There are secrets in the text.

use std::fmt;
use std::sync::Arc;

use lunet_gateway::GatewayId;
use lunet_rbd::{Client, ImageName, Object, Place};
use zeroize::Zeroizing;

use crate::store::{EEXIST, ENOENT, Error, Said};

/// The longest text in bytes, without its first line.
pub const MAX_TEXT: usize = 128 << 10;
/// Room for the first line.
const MAX_HEAD: usize = 128;
/// What the first line begins with; the format follows.
const HEAD: &str = "# lunet group configuration, format ";
/// The format that this program reads and writes.
const FORMAT: &str = "1";
/// Between format and revision.
const REVISION: &str = ", revision ";
/// ECANCELED: it has another revision.
const CANCELED: i32 = 125;
/// EFBIG.
const TOO_BIG: i32 = 27;

/// A configuration of a group.
#[derive(Clone, PartialEq, Eq)]
pub struct Shared {
    /// Counts replacements, from 1.
    pub revision: u64,
    /// TOML. There may be secrets in it.
    pub text: Zeroizing<String>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// Why bytes are no configuration of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not UTF-8.
    #[error("it is no text")]
    NoText,
    /// The first line is another one.
    #[error("its first line is not \"{HEAD}{FORMAT}{REVISION}NUMBER\"")]
    NoHead,
    /// A later program has written it.
    #[error("it has format {0}, and this lunet reads format {FORMAT}: update lunet")]
    Format(String),
    /// It is too long.
    #[error("it has more than {MAX_TEXT} bytes")]
    TooLong,
}

/// Takes the first line from a text, if it is one of these: the revision, and the rest.
///
/// # Errors
/// The first line has another format, or no revision.
pub fn split(text: &str) -> Result<Option<(u64, &str)>, Unreadable> {
    let Some(head) = text.strip_prefix(HEAD) else { return Ok(None) };
    let (head, rest) = head.split_once('\n').ok_or(Unreadable::NoHead)?;
    // Editors of other systems end lines so.
    let head = head.strip_suffix('\r').unwrap_or(head);
    let (format, revision) = head.split_once(REVISION).ok_or(Unreadable::NoHead)?;
    let is_number =
        |text: &str| !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(format) || format.is_empty() {
        return Err(Unreadable::NoHead);
    }
    if format != FORMAT {
        return Err(Unreadable::Format(format.chars().take(20).collect()));
    }
    let number = Some(revision).filter(|text| is_number(text)).and_then(|text| text.parse().ok());
    number.map(|revision| Some((revision, rest))).ok_or(Unreadable::NoHead)
}

impl Shared {
    /// The first line, with its end.
    pub fn head(&self) -> String {
        format!("{HEAD}{FORMAT}{REVISION}{}\n", self.revision)
    }

    /// As the object has it.
    ///
    /// # Errors
    /// The text is too long.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, Unreadable> {
        if self.text.len() > MAX_TEXT {
            return Err(Unreadable::TooLong);
        }
        // Room for all of it: what grows out of its place leaves a copy behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.text.len() + MAX_HEAD));
        bytes.extend_from_slice(self.head().as_bytes());
        bytes.extend_from_slice(self.text.as_bytes());
        Ok(bytes)
    }

    /// Reads what [`encode`](Self::encode) has written.
    ///
    /// # Errors
    /// It has not.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::NoText)?;
        let (revision, text) = split(text)?.ok_or(Unreadable::NoHead)?;
        if text.len() > MAX_TEXT {
            return Err(Unreadable::TooLong);
        }
        Ok(Self { revision, text: Zeroizing::new(text.to_owned()) })
    }
}

/// What a server serves of a group by its shared configuration. Called on threads that may wait, one for each question.
pub trait Shares: Send + Sync {
    /// A number that changes whenever the server serves by another configuration.
    fn generation(&self) -> u64;

    /// Serves by this configuration from now on, if it is another one than now. `since` is the
    /// [`generation`](Self::generation) before it was read: if that has changed meanwhile, nothing is done, and the result is
    /// false.
    ///
    /// # Errors
    /// It cannot be served, and why: this gateway serves nothing of the group then.
    fn take(&self, since: u64, shared: Shared) -> Result<bool, Said>;

    /// The revision that is served.
    fn revision(&self) -> u64;
}

/// What a gateway says when it was told of another configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which one it is.
    pub gateway: GatewayId,
    /// The revision that it serves.
    pub revision: u64,
    /// Why it does not serve the latest.
    pub trouble: Option<String>,
}

impl Heard {
    /// The longest sentence, in bytes.
    const MOST: usize = 400;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let trouble = self.trouble.as_deref().unwrap_or_default();
        let end = trouble.char_indices().map(|(at, c)| at + c.len_utf8());
        let end = end.take_while(|end| *end <= Self::MOST).last().unwrap_or_default();
        format!("{} {} {}", self.gateway.0, self.revision, &trouble[..end]).into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes.get(..bytes.len().min(2 * Self::MOST))?).ok()?;
        let mut parts = text.splitn(3, ' ');
        let gateway = GatewayId(parts.next()?.parse().ok()?);
        let revision = parts.next()?.parse().ok()?;
        // Whoever may write into the pool may say anything.
        let trouble: String = parts.next()?.chars().filter(|c| !c.is_control()).collect();
        Some(Self { gateway, revision, trouble: (!trouble.is_empty()).then_some(trouble) })
    }
}

/// The object of a group's configuration.
pub(crate) fn object_of(group: &ImageName) -> String {
    format!("lunet.group.{}.config", group.image())
}

pub(crate) fn open(client: &Arc<Client>, group: &ImageName) -> Result<Object, Error> {
    Ok(Object::new(client, group.pool(), group.namespace(), &object_of(group))?)
}

/// `None` if there is none.
pub(crate) fn load(object: &Object, group: &ImageName) -> Result<Option<Shared>, Error> {
    let unreadable = |source| Error::Unreadable { object: object_of(group), source };
    match object.read() {
        Ok(bytes) => Shared::decode(&Zeroizing::new(bytes)).map(Some).map_err(unreadable),
        Err(ENOENT) => Ok(None),
        Err(TOO_BIG) => Err(unreadable(Unreadable::TooLong)),
        Err(errno) => Err(Error::of("read the group's configuration", errno)),
    }
}

/// Writes a configuration, in the place of the one with the revision before; the first one, where there is none.
pub(crate) fn write(object: &Object, group: &ImageName, shared: &Shared) -> Result<(), Error> {
    let unreadable = |source| Error::Unreadable { object: object_of(group), source };
    let bytes = shared.encode().map_err(unreadable)?;
    let revision = shared.revision.to_string();
    let written = match shared.revision - 1 {
        0 => object.create(&revision, &bytes),
        before => object.replace(&before.to_string(), &revision, &bytes),
    };
    match written {
        Ok(()) => Ok(()),
        Err(CANCELED | EEXIST | ENOENT) => Err(Error::Changed),
        Err(errno) => Err(Error::of("write the group's configuration", errno)),
    }
}

/// Reads the configuration of a group, by a client of its own; `None` if it has none in the cluster. Blocks.
///
/// # Errors
/// It cannot be read, or the cluster's.
pub fn read_shared(group: &Place) -> Result<Option<Shared>, Error> {
    let client = Arc::new(Client::connect(group)?);
    load(&open(&client, &group.name)?, &group.name)
}

/// Writes the configuration of a group, in the place of the one with the revision before, by a client of its own. Gateways
/// that run are not told, and find it within seconds. Blocks.
///
/// # Errors
/// [`Error::Changed`] if there is another one; it is too long; or the cluster's.
pub fn write_shared(group: &Place, shared: &Shared) -> Result<(), Error> {
    let client = Arc::new(Client::connect(group)?);
    write(&open(&client, &group.name)?, &group.name, shared)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_comes_back(revision in 1_u64.., text in any::<String>()) {
            let one = shared(revision, &text);
            prop_assert_eq!(Shared::decode(&one.encode().unwrap()), Ok(one));
        }

        /// What is read is written the same way, so that nothing of the first line is lost.
        #[test]
        fn what_is_read_is_all_that_was_there(bytes in bytes()) {
            if let Ok(one) = Shared::decode(&bytes) {
                prop_assert_eq!(&*one.encode().unwrap(), &bytes);
            }
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let head = "(# lunet group configuration, format )?[0-2]{0,2}(, revision )?[0-9]{0,20}";
        (head, "\\PC{0,20}").prop_map(|(head, text)| format!("{head}\n{text}").into_bytes())
    }

    fn shared(revision: u64, text: &str) -> Shared {
        Shared { revision, text: Zeroizing::new(text.to_owned()) }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "",
            "\n",
            "[volumes.a]\n",
            "# lunet group configuration, format 1, revision 9\n",
            "é\r\n",
        ] {
            for revision in [1, 2, 10, u64::MAX] {
                let one = shared(revision, text);
                let bytes = one.encode().unwrap();
                assert_eq!(Shared::decode(&bytes).as_ref(), Ok(&one));
                // It is TOML as a whole, and the revision is a comment there.
                assert!(bytes.starts_with(b"# "));
            }
        }
        let long = shared(1, &"x".repeat(MAX_TEXT));
        assert_eq!(Shared::decode(&long.encode().unwrap()), Ok(long));
        let longer = shared(1, &"x".repeat(MAX_TEXT + 1));
        assert_eq!(longer.encode(), Err(Unreadable::TooLong));
        let bytes = [longer.head().as_bytes(), longer.text.as_bytes()].concat();
        assert_eq!(Shared::decode(&bytes), Err(Unreadable::TooLong));
    }

    #[test]
    fn other_first_lines_are_refused() {
        let head = "# lunet group configuration, format ";
        for (line, error) in [
            ("", Unreadable::NoHead),
            ("[volumes.a]\n", Unreadable::NoHead),
            ("1, revision 7", Unreadable::NoHead),
            ("1, revision \n", Unreadable::NoHead),
            ("1, revision 0\n", Unreadable::NoHead),
            ("1, revision 07\n", Unreadable::NoHead),
            ("1, revision +7\n", Unreadable::NoHead),
            ("1, revision 7 \n", Unreadable::NoHead),
            ("1, revision 18446744073709551616\n", Unreadable::NoHead),
            (", revision 1\n", Unreadable::NoHead),
            ("01, revision 1\n", Unreadable::NoHead),
            ("2, revision 1\n", Unreadable::Format("2".into())),
        ] {
            let text = if line.is_empty() || line.starts_with('[') {
                line.to_owned()
            } else {
                format!("{head}{line}")
            };
            assert_eq!(Shared::decode(text.as_bytes()), Err(error), "{text:?}");
        }
        assert_eq!(Shared::decode(b"\xff"), Err(Unreadable::NoText));
        assert_eq!(split("[volumes.a]\n"), Ok(None));
    }

    #[test]
    fn secrets_are_not_printed() {
        let one = shared(1, "secret = 'twelve bytes and more'");
        assert!(!format!("{one:?}").contains("twelve"));
    }

    #[test]
    fn an_answer_of_a_gateway_is_read_within_bounds() {
        let one = Heard { gateway: GatewayId(3), revision: 8, trouble: None };
        assert_eq!(Heard::decode(&one.encode()), Some(one.clone()));
        let two = Heard { trouble: Some("a \u{e9} b".into()), ..one.clone() };
        assert_eq!(Heard::decode(&two.encode()), Some(two));
        let long = Heard { trouble: Some("\u{e9}".repeat(1000)), ..one };
        let read = Heard::decode(&long.encode()).unwrap().trouble.unwrap();
        assert_eq!(read, "\u{e9}".repeat(200));
        for bytes in [&b""[..], b"1", b"1 2", b"x 2 ", b"1 x ", b"\xff 1 "] {
            assert_eq!(Heard::decode(bytes), None);
        }
        let told = Heard::decode(b"1 2 a\x1b[31m\nb").unwrap().trouble;
        assert_eq!(told.as_deref(), Some("a[31mb"));
    }
}
