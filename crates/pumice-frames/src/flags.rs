//! Sets of flags, which are the bits of a number.

/// A set of flags, each a bit with a name, and sets of these with a name of their own. It has what this project asks of
/// such sets, and no more.
#[macro_export]
macro_rules! flags {
    (
        $(#[$about:meta])*
        $visibility:vis struct $Flags:ident: $Bits:ty {
            $($(#[doc = $text:literal])* const $NAME:ident = $bits:expr;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        $visibility struct $Flags($Bits);

        #[allow(dead_code, reason = "no set needs all of it")]
        impl $Flags {
            $($(#[doc = $text])* pub const $NAME: $Flags = $Flags($bits);)+

            /// No flag.
            #[inline]
            pub const fn empty() -> $Flags {
                $Flags(0)
            }

            /// Whether no flag is in it.
            #[doc(hidden)]
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether all of these flags are in it.
            #[inline]
            pub const fn contains(self, flags: $Flags) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// All that have a name.
            #[doc(hidden)]
            #[inline]
            pub const fn all() -> $Flags {
                $Flags($($Flags::$NAME.0)|+)
            }

            /// The number.
            #[doc(hidden)]
            #[inline]
            pub const fn bits(self) -> $Bits {
                self.0
            }

            /// Of a number, bits without a name included.
            #[doc(hidden)]
            #[inline]
            pub const fn from_bits_retain(bits: $Bits) -> $Flags {
                $Flags(bits)
            }

            /// Of a number, but for bits without a name.
            #[doc(hidden)]
            #[inline]
            pub const fn from_bits_truncate(bits: $Bits) -> $Flags {
                $Flags(bits & $Flags::all().0)
            }
        }

        impl core::ops::BitOr for $Flags {
            type Output = $Flags;

            #[inline]
            fn bitor(self, other: $Flags) -> $Flags {
                $Flags(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $Flags {
            #[inline]
            fn bitor_assign(&mut self, other: $Flags) {
                self.0 |= other.0;
            }
        }

        impl core::ops::SubAssign for $Flags {
            #[inline]
            fn sub_assign(&mut self, other: $Flags) {
                self.0 &= !other.0;
            }
        }

        impl core::ops::BitAnd for $Flags {
            type Output = $Flags;

            #[inline]
            fn bitand(self, other: $Flags) -> $Flags {
                $Flags(self.0 & other.0)
            }
        }

        impl core::fmt::Debug for $Flags {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({:#x}", stringify!($Flags), self.0)?;
                $(if self.contains($Flags::$NAME) {
                    f.write_str(concat!(" ", stringify!($NAME)))?;
                })+
                f.write_str(")")
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::flags! {
        /// Three flags, and two of them together.
        struct Few: u8 {
            const A = 1;
            const B = 2;
            const D = 8;
            const BOTH = Few::A.0 | Few::B.0;
        }
    }

    #[test]
    fn sets_of_flags_are_bits() {
        assert_eq!(Few::A | Few::B, Few::BOTH);
        assert_eq!(Few::BOTH & Few::B, Few::B);
        assert!(Few::BOTH.contains(Few::A) && !Few::A.contains(Few::BOTH));
        assert!(Few::empty().is_empty() && Few::A.contains(Few::empty()));
        assert_eq!(Few::all().bits(), 11);
        assert_eq!(Few::from_bits_truncate(0xff), Few::all());
        assert_eq!(Few::from_bits_retain(0xff).bits(), 0xff);
        let mut few = Few::A;
        few |= Few::D;
        few -= Few::A | Few::B;
        assert_eq!(few, Few::D);
        assert_eq!(format!("{:?} {few:?}", Few::BOTH), "Few(0x3 A B BOTH) Few(0x8 D)");
    }
}
