//! Words for programs: an enumeration that keeps a word which it does not know.

/// Makes an enumeration of words. One of another version is `Other`, and is passed on as it came.
macro_rules! words {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            /// A word of another version of lunet; empty where nothing was said.
            Other(String),
        }

        impl $name {
            /// Every word that this version knows, in the order of their documentation.
            pub const KNOWN: &[Self] = &[$(Self::$variant),+];

            /// The value as it is written in JSON.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)+
                    _ => Self::Other(word.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer).map(|word| Self::from(word.as_str()))
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                crate::words::schema(&[$($word),+])
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {}
    };
}

/// The schema of an enumeration of words: any string, since servers of other versions have other words.
#[cfg(feature = "schema")]
pub(crate) fn schema(known: &[&str]) -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
    let text = format!("One of: {}. Another version may have others.", known.join(", "));
    utoipa::openapi::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .description(Some(text))
        .examples([serde_json::json!(known[0])])
        .into()
}

pub(crate) use words;
