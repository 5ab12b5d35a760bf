//! Enums whose values have names, in tables and in JSON.

/// An enum with the name of each value behind it, and `name`.
macro_rules! named {
    (
        $(#[$about:meta])*
        $visibility:vis enum $Enum:ident {
            $($(#[$of_value:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        $visibility enum $Enum {
            $($(#[$of_value])* $Value,)+
        }

        impl $Enum {
            /// The name in tables and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $($Enum::$Value => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
