//! The functions that SQLite calls for an open file. Their proofs stand on the three facts of
//! [`shim`](super::shim).

#![allow(unsafe_code)] // As there.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use sqlite_outbox::rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods};

use super::State;
use super::disk::Op;
use super::faults::Call;

/// Our part of an open file; the inner VFS's part follows it in the same allocation of SQLite's.
#[repr(C)]
pub(super) struct File {
    pub(super) base: sqlite3_file,
    /// Owned by the file, freed by [`close`].
    pub(super) handle: *mut Handle,
}

pub(super) struct Handle {
    pub(super) state: Arc<State>,
    /// The file's number in the record; temporary files have none.
    pub(super) number: Option<usize>,
}

/// Our functions for an open file. Version 2: shared memory, but no memory mapping, which would
/// write past us.
pub(super) static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Passes a call on to the inner file.
macro_rules! forward {
    ($file:ident . $function:ident ( $($argument:expr),* ) else $missing:expr) => {{
        // SAFETY: Opened, so there is an open inner file behind ours; it gets the arguments that
        // SQLite gave us for it.
        unsafe {
            let inner = inner($file);
            match (*(*inner).pMethods).$function {
                Some(function) => function(inner, $($argument),*),
                None => $missing,
            }
        }
    }};
}

/// Where the inner file stands. Only computes an address.
pub(super) fn inner(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // Aligned as ours is: `File` is a whole number of words.
    file.cast::<File>().wrapping_add(1).cast()
}

/// # Safety
///
/// `file` is open, as SQLite gives it to our functions.
unsafe fn handle<'a>(file: *mut sqlite3_file) -> &'a Handle {
    // SAFETY: Opened; `close`, which frees it, comes after all other calls.
    unsafe { &*(*file.cast::<File>()).handle }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let code = forward!(file.xClose() else ffi::SQLITE_OK);
    // SAFETY: Opened: `open` boxed the handle, and this is the only call that frees it, as without
    // methods the file is not open any more.
    unsafe {
        let file = &mut *file.cast::<File>();
        file.base.pMethods = std::ptr::null();
        drop(Box::from_raw(file.handle));
    }
    code
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    to: *mut c_void,
    size: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: an open file of ours.
    if let Some(code) = unsafe { handle(file) }.state.trouble(Call::Read) {
        return code;
    }
    forward!(file.xRead(to, size, at) else ffi::SQLITE_IOERR_READ)
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    size: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: an open file of ours.
    let handle = unsafe { handle(file) };
    let trouble = handle.state.trouble(Call::Write);
    let size = match trouble {
        Some(ffi::SQLITE_FULL) => size / 2,
        Some(code) => return code,
        None => size,
    };
    let code = forward!(file.xWrite(from, size, at) else ffi::SQLITE_IOERR_WRITE);
    if let (ffi::SQLITE_OK, Some(number)) = (code, handle.number) {
        let length = usize::try_from(size).unwrap_or(0);
        // SAFETY: SQLite gives at least `size` bytes to write, which is not negative.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
        let at = usize::try_from(at).unwrap_or(0);
        handle.state.note(|| Op::Write(number, at, bytes.to_vec()));
    }
    trouble.unwrap_or(code)
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: an open file of ours.
    let handle = unsafe { handle(file) };
    if let Some(code) = handle.state.trouble(Call::Truncate) {
        return code;
    }
    let code = forward!(file.xTruncate(size) else ffi::SQLITE_IOERR_TRUNCATE);
    if let (ffi::SQLITE_OK, Some(number)) = (code, handle.number) {
        let size = usize::try_from(size).unwrap_or(0);
        handle.state.note(|| Op::Truncate(number, size));
    }
    code
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: an open file of ours.
    let handle = unsafe { handle(file) };
    if let Some(code) = handle.state.trouble(Call::Sync) {
        return code;
    }
    handle.state.synced();
    let code = forward!(file.xSync(flags) else ffi::SQLITE_IOERR_FSYNC);
    if let (ffi::SQLITE_OK, Some(number)) = (code, handle.number) {
        handle.state.note(|| Op::Sync(number));
    }
    code
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, out: *mut sqlite3_int64) -> c_int {
    forward!(file.xFileSize(out) else ffi::SQLITE_IOERR_FSTAT)
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: an open file of ours.
    if let Some(code) = unsafe { handle(file) }.state.trouble(Call::Lock) {
        return code;
    }
    forward!(file.xLock(level) else ffi::SQLITE_IOERR_LOCK)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    forward!(file.xUnlock(level) else ffi::SQLITE_IOERR_UNLOCK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    forward!(file.xCheckReservedLock(out) else ffi::SQLITE_IOERR_CHECKRESERVEDLOCK)
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    forward!(file.xFileControl(op, arg) else ffi::SQLITE_NOTFOUND)
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    forward!(file.xSectorSize() else 0)
}

/// Without atomic batches, which would write past us.
unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    forward!(file.xDeviceCharacteristics() else 0) & !ffi::SQLITE_IOCAP_BATCH_ATOMIC
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    page: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: an open file of ours.
    if let Some(code) = unsafe { handle(file) }.state.trouble(Call::ShmMap) {
        return code;
    }
    forward!(file.xShmMap(page, size, extend, out) else ffi::SQLITE_IOERR_SHMMAP)
}

unsafe extern "C" fn shm_lock(
    file: *mut sqlite3_file,
    offset: c_int,
    n: c_int,
    flags: c_int,
) -> c_int {
    // Giving a lock back does not fail.
    let takes = flags & ffi::SQLITE_SHM_LOCK != 0;
    // SAFETY: an open file of ours.
    let trouble = takes.then(|| unsafe { handle(file) }.state.trouble(Call::ShmLock));
    if let Some(Some(code)) = trouble {
        return code;
    }
    forward!(file.xShmLock(offset, n, flags) else ffi::SQLITE_IOERR_SHMLOCK)
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    forward!(file.xShmBarrier() else ());
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, delete: c_int) -> c_int {
    forward!(file.xShmUnmap(delete) else ffi::SQLITE_OK)
}
