//! The driver API of an NVIDIA GPU, as far as it is needed, from `libcuda.so.1`.
//!
//! Nothing is linked. Names and signatures are those of `cuda.h` (CUDA Driver API Reference);
//! the header maps the plain names to those with `_v2`.

use core::ffi::{c_int, c_uint, c_void, CStr};
use core::marker::PhantomData;
use core::ptr::null_mut;

use crate::sys::dynamic::Library;

/// An address in the GPU's memory.
pub type DevicePointer = u64;
/// A stream, an event, a context.
pub type Handle = *mut c_void;

/// `CUDA_ERROR_NOT_READY`
pub const NOT_READY: c_int = 600;

/// Why no GPU can be used, or the call that one refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No library.
    #[error("there is no libcuda.so.1: no NVIDIA driver is installed")]
    NoLibrary,
    /// It lacks a function.
    #[error("libcuda.so.1 has no {0}")]
    NoFunction(&'static str),
    /// A call failed.
    #[error("{call} failed with {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: c_int,
    },
}

macro_rules! functions {
    ($($field:ident: $name:literal ($($argument:ty),*);)*) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: Library) -> Result<Functions, CudaError> {
                Ok(Functions { $($field: {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zeros"),
                    };
                    let address = library.symbol(NAME).ok_or(CudaError::NoFunction($name))?;
                    // SAFETY: a function of this name has this signature.
                    unsafe {
                        core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                            address.as_ptr(),
                        )
                    }
                },)* })
            }
        }

        impl Driver {
            $(
                /// # Safety
                /// As the function's reference has it.
                #[allow(clippy::too_many_arguments, non_snake_case, dead_code, reason = "one shape for all")]
                pub(super) unsafe fn $field(&self, arguments: ($($argument,)*)) -> Result<(), CudaError> {
                    // SAFETY: as the caller promises.
                    let code = unsafe { functions!(@call self.functions.$field, arguments, $($argument),*) };
                    match code {
                        0 => Ok(()),
                        code => Err(CudaError::Call { call: $name, code }),
                    }
                }
            )*
        }
    };
    (@call $function:expr, $arguments:ident, $a:ty) => { ($function)($arguments.0) };
    (@call $function:expr, $arguments:ident, $a:ty, $b:ty) => { ($function)($arguments.0, $arguments.1) };
    (@call $function:expr, $arguments:ident, $a:ty, $b:ty, $c:ty) => {
        ($function)($arguments.0, $arguments.1, $arguments.2)
    };
    (@call $function:expr, $arguments:ident, $a:ty, $b:ty, $c:ty, $d:ty) => {
        ($function)($arguments.0, $arguments.1, $arguments.2, $arguments.3)
    };
}

functions! {
    init: "cuInit" (c_uint);
    device_get: "cuDeviceGet" (*mut c_int, c_int);
    retain: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release: "cuDevicePrimaryCtxRelease_v2" (c_int);
    push: "cuCtxPushCurrent_v2" (Handle);
    pop: "cuCtxPopCurrent_v2" (*mut Handle);
    host_register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister: "cuMemHostUnregister" (*mut c_void);
    host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost" (*mut c_void);
    alloc: "cuMemAlloc_v2" (*mut DevicePointer, usize);
    free: "cuMemFree_v2" (DevicePointer);
    fill: "cuMemsetD8_v2" (DevicePointer, u8, usize);
    copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Handle);
    stream_create: "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2" (Handle);
    stream_wait: "cuStreamSynchronize" (Handle);
    event_create: "cuEventCreate" (*mut Handle, c_uint);
    event_record: "cuEventRecord" (Handle, Handle);
    event_query: "cuEventQuery" (Handle);
    event_destroy: "cuEventDestroy_v2" (Handle);
}

/// The first GPU, by its primary context.
#[derive(Debug)]
pub struct Driver {
    functions: Functions,
    device: c_int,
    context: Handle,
}

// SAFETY: the driver's functions may be called from any thread; a context is made current on each
// before (CUDA Driver API, "Context Management").
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

/// The context, current on the calling thread for as long as this lives.
pub struct Current<'d> {
    driver: &'d Driver,
    not_send: PhantomData<*mut ()>,
}

impl Driver {
    /// Loads the library and takes the first GPU.
    ///
    /// # Safety
    /// The library of that name is NVIDIA's, or does as it does.
    pub unsafe fn open(library: &CStr) -> Result<Driver, CudaError> {
        // SAFETY: as the caller promises.
        let library = unsafe { Library::load(library) }.ok_or(CudaError::NoLibrary)?;
        let functions = Functions::of(library)?;
        let mut driver = Driver { functions, device: -1, context: null_mut() };
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: places for the results.
        unsafe {
            driver.init((0,))?;
            driver.device_get((&mut device, 0))?;
            driver.retain((&mut context, device))?;
        }
        driver.device = device;
        driver.context = context;
        Ok(driver)
    }

    /// Makes the context current on this thread, on top of the program's own context.
    pub fn enter(&self) -> Result<Current<'_>, CudaError> {
        // SAFETY: a context that this value holds.
        unsafe { self.push((self.context,))? };
        Ok(Current { driver: self, not_send: PhantomData })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: it is the context that `enter` pushed.
        let _ = unsafe { self.driver.pop((&mut context,)) };
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.device >= 0 {
            // SAFETY: retained by `open`.
            let _ = unsafe { self.release((self.device,)) };
        }
    }
}
