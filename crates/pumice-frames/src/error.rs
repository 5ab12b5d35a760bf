//! Typed errors of the crate; each variant's doc comment is its message.

use rustix::io::Errno;

/// The errors of asking for memory or giving it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No frames are left in the zones the request may use.
    #[error("no frames are left in the zones the request may use")]
    OutOfFrames,
    /// The pool has reached its limit (`--pool-max`).
    #[error("the pool has reached its limit; raise it with --pool-max")]
    PoolLimit,
    /// The request's alignment is no power of two.
    #[error("an alignment must be a power of two")]
    BadAlignment,
    /// The frames given back are not allocated: a double free.
    #[error("frames given back that are not allocated")]
    DoubleFree,
    /// The address is not the start of an allocation of this zone.
    #[error("not the start of an allocation of this zone")]
    NotAllocated,
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Os(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Os(errno)
    }
}

/// [`core::result::Result`] with this crate's [`Error`].
pub type Result<T> = core::result::Result<T, Error>;
