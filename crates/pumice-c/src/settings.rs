//! Settings and counters, by the names under which `pumice ctl` and reports know them.

use std::ffi::{c_char, CStr};
use std::io::Write;
use std::ptr::null;

use pumice_heap::config::Setting;
use pumice_heap::stats::{CounterSlot, Event, EVENTS};

use crate::memory::HEAP;
use crate::status::{guard, Status};

/// Bytes that the value of any setting fits in, with its NUL.
pub const PUMICE_VALUE_SIZE: usize = 32;

/// The size of the process's pool, beside the events.
const POOL_BYTES: &str = "pool_bytes";
/// Longer than any name.
const NAME_SIZE: usize = 32;
type Name = [u8; NAME_SIZE];

static COUNTER_NAMES: [Name; EVENTS + 1] = {
    let mut names = [terminated(POOL_BYTES); EVENTS + 1];
    let mut index = 0;
    while index < EVENTS {
        names[index] = terminated(Event::ALL[index].name());
        index += 1;
    }
    names
};

static SETTING_KEYS: [Name; Setting::ALL.len()] = {
    let mut keys = [[0; NAME_SIZE]; Setting::ALL.len()];
    let mut index = 0;
    while index < keys.len() {
        keys[index] = terminated(Setting::ALL[index].key());
        index += 1;
    }
    keys
};

/// A name as C wants it. Evaluated by the compiler, which refuses one that is too long.
const fn terminated(name: &str) -> Name {
    let mut bytes = [0; NAME_SIZE];
    let mut index = 0;
    while index < name.len() {
        bytes[index] = name.as_bytes()[index];
        index += 1;
    }
    assert!(index < NAME_SIZE, "room for the NUL");
    bytes
}

/// Changes a setting of this process, as "pumice ctl" would: pumice_set("scrub_load", "1.5").
/// pumice_setting_key lists the keys.
///
/// # Safety
/// Both are NULL or strings.
#[no_mangle]
pub unsafe extern "C" fn pumice_set(key: *const c_char, value: *const c_char) -> Status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (setting, value) = unsafe { (setting(key)?, text(value)?) };
        let raw = setting.parse(value).ok_or(Status::BadValue)?;
        setting.set(slot()?, raw);
        Ok(())
    })
}

/// Writes the value of a setting of this process to `value`, as pumice_set would take it, with a
/// NUL. `size` is the buffer's size in bytes; PUMICE_VALUE_SIZE is enough.
///
/// # Safety
/// `key` is NULL or a string, `value` is NULL or points to `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn pumice_get(key: *const c_char, value: *mut c_char, size: usize) -> Status {
    guard(|| {
        // SAFETY: as the caller promises.
        let setting = unsafe { setting(key)? };
        if value.is_null() {
            return Err(Status::Invalid);
        }
        let mut text = [0u8; PUMICE_VALUE_SIZE];
        let mut rest = &mut text[..];
        write!(rest, "{}\0", setting.show(setting.get(slot()?))).map_err(|_| Status::Internal)?;
        let length = PUMICE_VALUE_SIZE - rest.len();
        if length > size {
            return Err(Status::TooSmall);
        }
        // SAFETY: the buffer is `size` bytes long, and the text is not longer.
        unsafe { value.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length) };
        Ok(())
    })
}

/// The key of a setting, from index 0 on; NULL after the last.
#[no_mangle]
pub extern "C" fn pumice_setting_key(index: usize) -> *const c_char {
    SETTING_KEYS.get(index).map_or(null(), |key| key.as_ptr().cast())
}

/// Reads a counter of this process, by the name that reports give it: "requests", "hits",
/// "pool_bytes". pumice_counter_name lists the names.
///
/// # Safety
/// `name` is NULL or a string, `value` is NULL or points to a uint64_t.
#[no_mangle]
pub unsafe extern "C" fn pumice_counter(name: *const c_char, value: *mut u64) -> Status {
    guard(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name)? };
        if value.is_null() {
            return Err(Status::Invalid);
        }
        let read = |slot: &CounterSlot| match name {
            POOL_BYTES => Some(slot.pool_bytes()),
            _ => Event::ALL
                .into_iter()
                .find(|event| event.name() == name)
                .map(|event| slot.get(event)),
        };
        let count = read(slot()?).ok_or(Status::NoSuchName)?;
        // SAFETY: as the caller promises.
        unsafe { value.write(count) };
        Ok(())
    })
}

/// The name of a counter, from index 0 on; NULL after the last.
#[no_mangle]
pub extern "C" fn pumice_counter_name(index: usize) -> *const c_char {
    COUNTER_NAMES.get(index).map_or(null(), |name| name.as_ptr().cast())
}

fn slot() -> Result<&'static CounterSlot, Status> {
    HEAP.slot().ok_or(Status::NotServed)
}

/// # Safety
/// `key` is null or a string.
unsafe fn setting(key: *const c_char) -> Result<Setting, Status> {
    // SAFETY: as the caller promises.
    let key = unsafe { text(key)? };
    let found = Setting::ALL.into_iter().find(|setting| setting.key() == key);
    found.ok_or(Status::NoSuchName)
}

/// # Safety
/// `at` is null or a string, which outlives what is returned.
unsafe fn text<'a>(at: *const c_char) -> Result<&'a str, Status> {
    if at.is_null() {
        return Err(Status::Invalid);
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(at) }.to_str().map_err(|_| Status::Invalid)
}
