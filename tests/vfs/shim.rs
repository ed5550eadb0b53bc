//! The C side of the VFS. The only unsafe code of the project: SQLite wants tables of functions.
//!
//! Three facts carry every proof here and in [`file`](super::file). **Registered**: the `sqlite3_vfs` of [`register`] and the
//! [`Shim`] behind its `pAppData` are leaked, so they outlive every call. **Opened**: SQLite calls
//! a function of [`METHODS`] only with a file whose `pMethods` points to it, and only [`open`] sets
//! that, after it has written the whole [`File`] and opened the inner file behind it; `xClose`
//! is the last call for a file. **One at a time**: SQLite makes no two calls for one file at once.

#![allow(unsafe_code)] // See above.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlite_outbox::rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_vfs};

use super::State;
use super::disk::Op;
use super::faults::Call;
use super::file::{File, Handle, METHODS, inner};

/// What stands behind `pAppData`.
struct Shim {
    /// The system's VFS.
    inner: *mut sqlite3_vfs,
    state: Arc<State>,
}

/// Registers the VFS for the life of the process.
pub(super) fn register(name: &str, state: Arc<State>) {
    // SAFETY: a null name asks for the default VFS. The call initialises SQLite if need be.
    let inner = unsafe {
        ffi::sqlite3_initialize();
        ffi::sqlite3_vfs_find(std::ptr::null())
    };
    assert!(!inner.is_null(), "SQLite has no VFS");
    // SAFETY: what SQLite finds is a registered VFS, and the default one is never unregistered.
    let system = unsafe { &*inner };
    let own = c_int::try_from(size_of::<File>()).expect("a small struct");
    let name = CString::new(name).expect("no NUL in the name");
    let vfs = sqlite3_vfs {
        iVersion: 2,
        szOsFile: own + system.szOsFile,
        mxPathname: system.mxPathname,
        pNext: std::ptr::null_mut(),
        zName: name.into_raw(),
        pAppData: Box::into_raw(Box::new(Shim { inner, state })).cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(get_last_error),
        xCurrentTimeInt64: Some(current_time_int64),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: the struct is complete for version 2 and leaked, with all that it points to.
    let code = unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0) };
    assert_eq!(code, ffi::SQLITE_OK, "the VFS is not registered");
}

/// # Safety
///
/// `vfs` is ours, as SQLite gives it to our functions.
unsafe fn shim(vfs: *mut sqlite3_vfs) -> &'static Shim {
    // SAFETY: Registered.
    unsafe { &*(*vfs).pAppData.cast::<Shim>() }
}

/// Passes a call on to the system's VFS.
macro_rules! system {
    ($vfs:ident . $function:ident ( $($argument:expr),* )) => {{
        // SAFETY: `shim` as SQLite called us with our VFS; its inner VFS is never unregistered
        // and gets the arguments that SQLite gave us for it.
        unsafe {
            let inner = shim($vfs).inner;
            match (*inner).$function {
                Some(function) => function(inner, $($argument),*),
                None => ffi::SQLITE_ERROR,
            }
        }
    }};
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls us with our VFS, and with a name that ends in NUL, or none.
    let (shim, path) = unsafe { (shim(vfs), path(name)) };
    // SAFETY: SQLite gives us `szOsFile` bytes, aligned to a word, of which ours come first. A
    // file without methods counts as not open.
    unsafe {
        let nothing = sqlite3_file {
            pMethods: std::ptr::null(),
        };
        file.cast::<File>().write(File {
            base: nothing,
            handle: std::ptr::null_mut(),
        });
        inner(file).write(nothing);
    }
    if let Some(code) = shim.state.trouble(Call::Open) {
        return code;
    }
    let inner = inner(file);
    let code = system!(vfs.xOpen(name, inner, flags, out_flags));
    if code != ffi::SQLITE_OK {
        // SAFETY: an inner file with methods wants to be closed even when it was not opened.
        unsafe {
            if let Some(close) = (*inner).pMethods.as_ref().and_then(|it| it.xClose) {
                close(inner);
            }
        }
        return code;
    }
    let state = Arc::clone(&shim.state);
    let number = path.and_then(|path| state.opened(&path));
    // SAFETY: as above; from here on the file is open.
    unsafe {
        file.cast::<File>().write(File {
            base: sqlite3_file { pMethods: &METHODS },
            handle: Box::into_raw(Box::new(Handle { state, number })),
        });
    }
    code
}

/// # Safety
///
/// `name` is null or ends in NUL.
unsafe fn path(name: *const c_char) -> Option<PathBuf> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(name) };
    Some(Path::new(&*name.to_string_lossy()).into())
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite calls us with our VFS and a name that ends in NUL.
    let (state, path) = unsafe { (&shim(vfs).state, path(name)) };
    if let Some(code) = state.trouble(Call::Delete) {
        return code;
    }
    let code = system!(vfs.xDelete(name, sync));
    if let (ffi::SQLITE_OK, Some(path)) = (code, path) {
        state.note(|| Op::Delete(path, sync != 0));
    }
    code
}

unsafe extern "C" fn access(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    system!(vfs.xAccess(name, flags, out))
}

unsafe extern "C" fn full_pathname(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    size: c_int,
    out: *mut c_char,
) -> c_int {
    system!(vfs.xFullPathname(name, size, out))
}

unsafe extern "C" fn randomness(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) -> c_int {
    system!(vfs.xRandomness(size, out))
}

unsafe extern "C" fn sleep(vfs: *mut sqlite3_vfs, micros: c_int) -> c_int {
    system!(vfs.xSleep(micros))
}

unsafe extern "C" fn current_time(vfs: *mut sqlite3_vfs, out: *mut f64) -> c_int {
    system!(vfs.xCurrentTime(out))
}

unsafe extern "C" fn get_last_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) -> c_int {
    system!(vfs.xGetLastError(size, out))
}

unsafe extern "C" fn current_time_int64(vfs: *mut sqlite3_vfs, out: *mut sqlite3_int64) -> c_int {
    system!(vfs.xCurrentTimeInt64(out))
}
