//! Any bytes, of a disk that is read by whole blocks.

/// Fills a buffer from a byte of a disk on, and drops what lies around it in the blocks read.
///
/// `from` is the first byte and the buffer; `blocks` the bytes of a block, and of the most that one
/// command reads; `read` answers so many blocks from a block on with their data.
///
/// # Errors
/// The first of `read`.
pub(crate) fn read<E>(
    from: (u64, &mut [u8]),
    blocks: (u64, u64),
    mut read: impl FnMut(u64, u32) -> Result<Vec<u8>, E>,
) -> Result<(), E> {
    let ((at, buffer), (size, most)) = (from, blocks);
    let most = most.max(size) / size;
    let end = at + buffer.len() as u64;
    let mut next = at / size;
    while next * size < end {
        let count = (end.div_ceil(size) - next).min(most);
        // A command's blocks are far fewer than its protocol can count.
        let data = read(next, count as u32)?;
        let (first, until) = (next * size, end.min((next + count) * size));
        let start = first.max(at);
        let own = &data[(start - first) as usize..(until - first) as usize];
        buffer[(start - at) as usize..(until - at) as usize].copy_from_slice(own);
        next += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::read;

    /// Bytes that are all different within a block, and the commands that were asked for.
    fn fill(at: u64, len: usize, blocks: (u64, u64)) -> (Vec<u8>, Vec<(u64, u32)>) {
        let (mut buffer, mut asked) = (vec![0; len], Vec::new());
        let size = blocks.0;
        read::<()>((at, &mut buffer), blocks, |first, count| {
            asked.push((first, count));
            Ok((first * size..(first + u64::from(count)) * size).map(|byte| byte as u8).collect())
        })
        .unwrap();
        (buffer, asked)
    }

    #[test]
    fn bytes_within_a_block_and_over_several_commands() {
        let (data, asked) = fill(5, 3, (16, 64));
        assert_eq!((data, asked), (vec![5, 6, 7], vec![(0, 1)]));
        let (data, asked) = fill(15, 100, (16, 64));
        assert_eq!(data, (15..115).collect::<Vec<u8>>());
        assert_eq!(asked, [(0, 4), (4, 4)]);
        // Blocks that are larger than the most of a command, which was meant for smaller ones.
        let (data, asked) = fill(32, 32, (16, 8));
        assert_eq!((data, asked), ((32..64).collect(), vec![(2, 1), (3, 1)]));
        assert_eq!(fill(7, 0, (16, 64)).0, Vec::<u8>::new());
    }

    #[test]
    fn the_first_error_ends_it() {
        let mut buffer = [0; 64];
        let mut calls = 0;
        let result = read((0, &mut buffer[..]), (16, 16), |_, _| {
            calls += 1;
            if calls == 2 { Err("gone") } else { Ok(vec![1; 16]) }
        });
        assert_eq!((result, calls, &buffer[15..17]), (Err("gone"), 2, &[1, 0][..]));
    }
}
