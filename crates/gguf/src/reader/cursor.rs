//! Numbers and strings from bytes that may end or lie.

use crate::error::{HeaderFault, HeaderItem};

/// A place in the bytes of a file, and what is being read there.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// What is being read: named in errors.
    pub(super) item: HeaderItem,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, item: HeaderItem::Start }
    }

    /// Bytes read so far. After an error, where the number or string at fault begins.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// The bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.offset..]
    }

    /// Reads something that is checked as a whole: on a fault the cursor is where it begins.
    pub(super) fn whole<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, HeaderFault>,
    ) -> Result<T, HeaderFault> {
        let begin = self.offset;
        read(self).inspect_err(|_| self.offset = begin)
    }

    /// A number: `cursor.number(u32::from_le_bytes)`.
    pub(super) fn number<const N: usize, T>(&mut self, decode: fn([u8; N]) -> T) -> Result<T, HeaderFault> {
        let bytes = self.rest().first_chunk().ok_or_else(|| self.truncated(N as u64))?;
        self.offset += N;
        Ok(decode(*bytes))
    }

    /// Numbers one after another.
    pub(super) fn numbers<const N: usize, T>(
        &mut self,
        count: usize,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, HeaderFault> {
        let bytes = self.take((count as u64).saturating_mul(N as u64))?;
        Ok(bytes.as_chunks().0.iter().map(|chunk| decode(*chunk)).collect())
    }

    /// A number of things of which each takes at least `least` bytes: it is no more than can follow, so that memory for
    /// it is in proportion to the file.
    pub(super) fn count(&mut self, what: &'static str, least: usize) -> Result<usize, HeaderFault> {
        self.whole(|cursor| {
            let count = cursor.number(u64::from_le_bytes)?;
            let left = cursor.rest().len();
            let fits = usize::try_from(count).ok().filter(|&count| count <= left / least);
            fits.ok_or(HeaderFault::Count { what, count, least, left: left as u64 })
        })
    }

    /// A string behind its length, which is `most` bytes or less.
    pub(super) fn string(&mut self, most: usize) -> Result<&'a str, HeaderFault> {
        self.whole(|cursor| {
            let length = cursor.number(u64::from_le_bytes)?;
            if length > most as u64 {
                return Err(HeaderFault::Length { found: length, most });
            }
            let bytes = cursor.take(length)?;
            std::str::from_utf8(bytes).map_err(|error| HeaderFault::Utf8 { valid: error.valid_up_to() })
        })
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], HeaderFault> {
        let taken = usize::try_from(count).ok().and_then(|count| self.rest().get(..count));
        let bytes = taken.ok_or_else(|| self.truncated(count))?;
        self.offset += bytes.len();
        Ok(bytes)
    }

    fn truncated(&self, needed: u64) -> HeaderFault {
        HeaderFault::Truncated { needed, left: self.rest().len() as u64 }
    }
}
