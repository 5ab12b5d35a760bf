//! A device of compressed memory, made for one experiment and removed after it.

use std::fs;
use std::io;
use std::path::PathBuf;

use pumice_frames::addr::FRAME_SIZE;

use crate::team::control_group::remove_when_idle;

const CONTROL: &str = "/sys/class/zram-control";

/// See the module's top. Dropping it removes it.
#[derive(Debug)]
pub struct Zram {
    number: u32,
}

impl Zram {
    /// Makes one of so many bytes: whole frames. Needs root, and the kernel's `zram`.
    pub fn add(bytes: u64) -> io::Result<Zram> {
        let text = fs::read_to_string(format!("{CONTROL}/hot_add"))?;
        let number = text.trim().parse().map_err(io::Error::other)?;
        let zram = Zram { number };
        let bytes = bytes.next_multiple_of(FRAME_SIZE as u64);
        fs::write(zram.setting("disksize"), bytes.to_string())?;
        // Without a node there is nothing to open.
        fs::metadata(zram.path())?;
        Ok(zram)
    }

    /// Its node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    fn setting(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.number)
    }

    fn remove(&self) -> io::Result<()> {
        fs::write(self.setting("reset"), "1")?;
        fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string())
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // A program that probes new block devices has it open for a moment.
        remove_when_idle(&self.path(), || self.remove());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_comes_and_goes() {
        let zram = match Zram::add(1 << 20) {
            Ok(zram) => zram,
            Err(error) => {
                eprintln!("skipped: no zram device can be made: {error}");
                return;
            }
        };
        let path = zram.path();
        let bytes = fs::read_to_string(zram.setting("disksize")).expect("a device");
        assert_eq!(bytes.trim(), "1048576");
        drop(zram);
        assert!(!path.exists(), "{}", path.display());
    }
}
