//! Enumerations of code values.

/// Declares an enumeration of wire codes with conversion from its number.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }

        impl $name {
            /// The code with this number, if the specification defines one.
            #[must_use]
            pub const fn from_code(code: $repr) -> Option<Self> {
                match code {
                    $(code if code == $value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> $repr {
                self as $repr
            }
        }
    };
}
pub(crate) use codes;

/// Declares a structure of exactly the bytes on the wire, whose fields are in the order of their
/// offsets. Any bytes are a valid value; a new one is all zero.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
pub(crate) use wire;
