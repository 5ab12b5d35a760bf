//! Enums whose values are the rows of a table: a name, a number, some text.

/// An enum with `ALL` of its values in order, and for each the text of its documentation (`explain`), the value of a
/// number (`from_number`), and what stands behind its arrow (`row`), where it has one.
#[macro_export]
macro_rules! table {
    (
        $(#[$about:meta])*
        $visibility:vis enum $Enum:ident: $Row:ty {
            $($(#[doc = $text:literal])* $Value:ident $(= $number:literal)? => $row:expr,)+
        }
    ) => {
        $crate::table! {
            $(#[$about])*
            $visibility enum $Enum { $($(#[doc = $text])* $Value $(= $number)?,)+ }
        }

        impl $Enum {
            const fn row(self) -> $Row {
                match self {
                    $($Enum::$Value => $row,)+
                }
            }
        }
    };
    (
        $(#[$about:meta])*
        $visibility:vis enum $Enum:ident {
            $($(#[doc = $text:literal])* $Value:ident $(= $number:literal)?,)+
        }
    ) => {
        $(#[$about])*
        $visibility enum $Enum {
            $($(#[doc = $text])* $Value $(= $number)?,)+
        }

        #[allow(dead_code, reason = "no table needs all of it")]
        impl $Enum {
            /// All of them, in order.
            #[doc(hidden)]
            pub const ALL: [$Enum; [$($Enum::$Value),+].len()] = [$($Enum::$Value),+];

            /// Its meaning, in words.
            #[doc(hidden)]
            pub const fn explain(self) -> &'static str {
                match self {
                    $($Enum::$Value => concat!($($text),*).trim_ascii(),)+
                }
            }

            /// The one with this number.
            #[doc(hidden)]
            pub fn from_number(number: impl Into<u64>) -> Option<$Enum> {
                let number = number.into();
                $Enum::ALL.into_iter().find(|&known| known as u64 == number)
            }
        }
    };
}
