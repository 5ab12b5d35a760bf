//! The memory functions that compiled code calls, which elsewhere come from libc.
//!
//! They are hidden: exported, they would take the place of the program's own. They are written
//! in assembler, since the compiler would turn loops in Rust back into calls of them.
//! `rust_eh_personality` is named by the precompiled `core`, and never called: nothing unwinds.

/// Defines hidden functions, by all of their names and their instructions.
macro_rules! functions {
    ($($($name:literal)+: $($line:literal),+;)+) => {$(
        core::arch::global_asm!(
            ".text",
            ".p2align 4",
            $(
                concat!(".hidden ", $name),
                concat!(".globl ", $name),
                concat!(".type ", $name, ", %function"),
                concat!($name, ":"),
            )+
            $($line,)+
            $(concat!(".size ", $name, ", . - ", $name),)+
        );
    )+};
}

#[cfg(target_arch = "x86_64")]
functions! {
    "memcpy":
        "mov rax, rdi",
        "mov rcx, rdx",
        "rep movsb",
        "ret";
    "memmove":
        "mov rax, rdi",
        "mov rcx, rdx",
        // Backwards only where the destination begins inside the source.
        "mov r8, rdi",
        "sub r8, rsi",
        "cmp r8, rdx",
        "jb 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rsi, [rsi + rdx - 1]",
        "lea rdi, [rdi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret";
    "memset":
        "mov r8, rdi",
        "mov eax, esi",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret";
    "memcmp" "bcmp":
        "xor ecx, ecx",
        "2:",
        "cmp rcx, rdx",
        "je 3f",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx r8d, byte ptr [rsi + rcx]",
        "inc rcx",
        "sub eax, r8d",
        "jz 2b",
        "ret",
        "3:",
        "xor eax, eax",
        "ret";
    "strlen":
        "mov rax, -1",
        "2:",
        "inc rax",
        "cmp byte ptr [rdi + rax], 0",
        "jne 2b",
        "ret";
    "rust_eh_personality":
        "ud2";
}

#[cfg(target_arch = "aarch64")]
functions! {
    "memmove":
        "sub x4, x0, x1",
        "cmp x4, x2",
        "b.hs memcpy",
        // The destination begins inside the source: backwards.
        "2:",
        "cbz x2, 3f",
        "sub x2, x2, #1",
        "ldrb w4, [x1, x2]",
        "strb w4, [x0, x2]",
        "b 2b",
        "3:",
        "ret";
    "memcpy":
        "mov x3, x0",
        "2:",
        "subs x2, x2, #16",
        "b.lo 3f",
        "ldp x4, x5, [x1], #16",
        "stp x4, x5, [x3], #16",
        "b 2b",
        "3:",
        "adds x2, x2, #16",
        "b.eq 5f",
        "4:",
        "ldrb w4, [x1], #1",
        "strb w4, [x3], #1",
        "subs x2, x2, #1",
        "b.ne 4b",
        "5:",
        "ret";
    "memset":
        "mov x3, x0",
        "cbz x2, 3f",
        "2:",
        "strb w1, [x3], #1",
        "subs x2, x2, #1",
        "b.ne 2b",
        "3:",
        "ret";
    "memcmp" "bcmp":
        "mov x3, x0",
        "mov w0, wzr",
        "2:",
        "cbz x2, 3f",
        "ldrb w4, [x3], #1",
        "ldrb w5, [x1], #1",
        "sub x2, x2, #1",
        "subs w0, w4, w5",
        "b.eq 2b",
        "3:",
        "ret";
    "strlen":
        "mov x1, x0",
        "2:",
        "ldrb w2, [x1], #1",
        "cbnz w2, 2b",
        "sub x0, x1, x0",
        "sub x0, x0, #1",
        "ret";
    "rust_eh_personality":
        "brk #1";
    // The compiler's atomics ask what the processor can do (AT_HWCAP). "Nothing" is always right.
    "getauxval":
        "mov x0, xzr",
        "ret";
}
