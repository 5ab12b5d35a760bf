//! The work queues that this machine offers to users, as the kernel's driver (`idxd`) shows them.
//!
//! `/sys/bus/dsa/devices/wqN.M/` has a file for each attribute (Documentation/ABI/stable/
//! sysfs-driver-dma-idxd); a queue that is enabled and of type `user` has a device `/dev/dsa/wqN.M`.
//! Names are tried one after the other: reading a folder would need memory to read it into.

use core::ffi::CStr;
use core::fmt::{self, Write};

use super::OpenError;
use pumice_frames::sys::file;

/// How a queue is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one client, which must know how full it is: MOVDIR64B.
    Dedicated,
    /// By many: ENQCMD says whether there was room.
    Shared,
}

/// A work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// Of the accelerator.
    pub device: u32,
    /// Within it.
    pub number: u32,
    /// How it is used.
    pub mode: Mode,
    /// Descriptors that it holds.
    pub entries: u32,
    /// Descriptors in a batch at most.
    pub most_in_batch: usize,
    /// Bytes of an operation at most.
    pub most_bytes: u32,
}

const DEVICES: u32 = 32;
const QUEUES: u32 = 8;

/// A path, ended by a zero.
pub(super) struct Path {
    bytes: [u8; Path::MOST],
    len: usize,
}

impl Path {
    const MOST: usize = 256;

    pub(super) fn new(parts: fmt::Arguments<'_>) -> Option<Path> {
        let mut path = Path { bytes: [0; Path::MOST], len: 0 };
        path.write_fmt(parts).ok()?;
        Some(path)
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays zero.
        let end = self.len + text.len();
        let place = self.bytes[..Path::MOST - 1].get_mut(self.len..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Where the driver shows itself; a test has a place of its own.
#[derive(Clone, Copy, Debug)]
pub struct Places<'p> {
    /// `/sys/bus/dsa/devices`
    pub devices: &'p str,
    /// `/dev/dsa`
    pub nodes: &'p str,
}

impl Places<'static> {
    /// The kernel's.
    pub const KERNEL: Places<'static> =
        Places { devices: "/sys/bus/dsa/devices", nodes: "/dev/dsa" };
}

impl Places<'_> {
    /// The queue's device.
    pub(super) fn node(&self, queue: &WorkQueue) -> Option<Path> {
        Path::new(format_args!("{}/wq{}.{}", self.nodes, queue.device, queue.number))
    }

    /// Calls `wanted` for each queue that users may have until it returns something.
    ///
    /// # Errors
    /// The part that is missing, if there is no queue, or the last error of `wanted`.
    pub(super) fn find<T>(
        &self,
        mut wanted: impl FnMut(WorkQueue) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        // Any attribute of the bus's own would do; this tells in one call that there is none.
        let bus = Path::new(format_args!("{}", self.devices)).ok_or(OpenError::NoDriver)?;
        if file::open_read(bus.as_c_str()).is_err() {
            return Err(OpenError::NoDriver);
        }
        let mut why = OpenError::NoQueue;
        for device in 0..DEVICES {
            for number in 0..QUEUES {
                let Some(queue) = self.queue(device, number) else { continue };
                match wanted(queue) {
                    Ok(found) => return Ok(found),
                    Err(error) => why = error,
                }
            }
        }
        Err(why)
    }

    /// A queue that is enabled, and for users.
    fn queue(&self, device: u32, number: u32) -> Option<WorkQueue> {
        let mut buffer = [0; 64];
        let folder = self.devices;
        let mut read = |path: Path, of: &mut dyn FnMut(&str) -> Option<u64>| {
            let bytes = file::read(path.as_c_str(), &mut buffer).ok()?;
            of(core::str::from_utf8(bytes).ok()?.trim())
        };
        let mut attribute = |name: &str, of: &mut dyn FnMut(&str) -> Option<u64>| {
            read(Path::new(format_args!("{folder}/wq{device}.{number}/{name}"))?, of)
        };
        let is = |wanted: &'static str| move |text: &str| Some(u64::from(text == wanted));
        let number_in = |text: &str| text.parse::<u64>().ok();
        if attribute("state", &mut is("enabled"))? == 0 || attribute("type", &mut is("user"))? == 0
        {
            return None;
        }
        let mode = attribute("mode", &mut |text| match text {
            "dedicated" => Some(0),
            "shared" => Some(1),
            _ => None,
        })?;
        let entries = attribute("size", &mut { number_in })?;
        let most_in_batch = attribute("max_batch_size", &mut { number_in }).unwrap_or(0);
        let most_bytes = attribute("max_transfer_size", &mut { number_in })?;
        // Without shared virtual memory descriptors' addresses are not the program's: older kernels
        // enable a queue for users all the same.
        if read(Path::new(format_args!("{folder}/dsa{device}/pasid_enabled"))?, &mut is("1"))? == 0
        {
            return None;
        }
        let mode = if mode == 0 { Mode::Dedicated } else { Mode::Shared };
        Some(WorkQueue {
            device,
            number,
            mode,
            entries: u32::try_from(entries).ok().filter(|&entries| entries > 0)?,
            most_in_batch: usize::try_from(most_in_batch).ok()?,
            most_bytes: u32::try_from(most_bytes).unwrap_or(1 << 31).max(1 << 12),
        })
    }
}
