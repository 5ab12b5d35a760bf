//! Enums whose values have names, in tables and in JSON.

/// A plain enum with the name of each value behind it, `ALL` and `name`.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $visibility:vis enum $Enum:ident {
            $($(#[$of_value:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $(#[$about])*
        $visibility enum $Enum {
            $($(#[$of_value])* $Value,)+
        }

        impl $Enum {
            /// All of them, in this order.
            #[allow(dead_code)]
            pub const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Value),+];

            /// The name in tables and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $($Enum::$Value => $name,)+
                }
            }
        }
    };
}

pub use named;
