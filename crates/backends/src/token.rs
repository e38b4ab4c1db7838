//! The event loop's tokens of disk operations.

use lunet_block::IoToken;
use lunet_ring::Token;

/// The top byte of every disk operation's token; all other tokens must have another.
const DISK: u64 = 0xD1;

/// The token of a disk operation: 0xD1 in the top byte, the channel in bits 32 to 47, the slot in
/// the low 32 bits.
pub const fn disk_token(io: IoToken) -> Token {
    Token((DISK << 56) | ((io.channel as u64) << 32) | io.slot as u64)
}

/// What [`disk_token`] packed; `None` if the token is not one of a disk operation.
pub const fn parse_disk_token(token: Token) -> Option<IoToken> {
    if token.0 >> 48 != DISK << 8 {
        return None;
    }
    Some(IoToken { channel: (token.0 >> 32) as u16, slot: token.0 as u32 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(channel: u16, slot: u32) {
            let io = IoToken { channel, slot };
            prop_assert_eq!(parse_disk_token(disk_token(io)), Some(io));
        }

        #[test]
        fn other_tokens_are_not_taken_for_a_disk_operations(top: u16, low in 0u64..1 << 48) {
            let token = Token((u64::from(top) << 48) | low);
            prop_assert_eq!(parse_disk_token(token).is_some(), top == 0xD100);
        }
    }

    #[test]
    fn the_layout_is_as_written() {
        let token = disk_token(IoToken { channel: 0x1234, slot: 0x5678_9ABC });
        assert_eq!(token.0, 0xD100_1234_5678_9ABC);
        assert_eq!(parse_disk_token(Token(0xD200_1234_5678_9ABC)), None);
        assert_eq!(parse_disk_token(Token(0xD101_1234_5678_9ABC)), None);
    }
}
