# Installs what cargo builds: the program, and the C library. `cargo build` needs none of this.
#
#   make install PREFIX=/usr DESTDIR=/tmp/package      everything
#   make install-library                               libpumice, its header and pkg-config file
#   make install-program                               pumice, its shim, manual page and completions
#
# BUILT names a folder where cargo has built already; nothing is built then. Run ldconfig after
# installing into a folder that the loader searches.

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share
DESTDIR ?=
CARGO ?= cargo
INSTALL ?= install

target := $(or $(CARGO_TARGET_DIR),target)
version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
major := $(firstword $(subst ., ,$(version)))
c := crates/pumice-c
program := $(or $(BUILT),$(target)/release)/pumice
libraries := $(or $(BUILT),$(target)/library)

.PHONY: all library program install install-library install-program

all: program library

# Apart, as always: built together, features that one turns on reach the other.
library:
	$(if $(BUILT),,$(CARGO) rustc --locked --profile library -p pumice-c --lib \
		--crate-type cdylib,staticlib)

program:
	$(if $(BUILT),,$(CARGO) build --locked --release -p pumice-cli)

install: install-program install-library

install-library: library
	$(INSTALL) -d '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(INCLUDEDIR)'
	$(INSTALL) -m 755 '$(libraries)/libpumice_c.so' '$(DESTDIR)$(LIBDIR)/libpumice.so.$(version)'
	ln -sf 'libpumice.so.$(version)' '$(DESTDIR)$(LIBDIR)/libpumice.so.$(major)'
	ln -sf 'libpumice.so.$(major)' '$(DESTDIR)$(LIBDIR)/libpumice.so'
	$(INSTALL) -m 644 '$(libraries)/libpumice_c.a' '$(DESTDIR)$(LIBDIR)/libpumice.a'
	$(INSTALL) -m 644 $(c)/include/pumice.h '$(DESTDIR)$(INCLUDEDIR)/pumice.h'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
		-e 's|@VERSION@|$(version)|' $(c)/pumice.pc.in >'$(DESTDIR)$(LIBDIR)/pkgconfig/pumice.pc'

install-program: program
	$(INSTALL) -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(DATADIR)/man/man1' \
		'$(DESTDIR)$(DATADIR)/bash-completion/completions' \
		'$(DESTDIR)$(DATADIR)/zsh/site-functions' \
		'$(DESTDIR)$(DATADIR)/fish/vendor_completions.d'
	$(INSTALL) -m 755 '$(program)' '$(DESTDIR)$(BINDIR)/pumice'
	'$(program)' env --format json --install-shim '$(DESTDIR)$(LIBDIR)/pumice' >/dev/null
	'$(program)' man >'$(DESTDIR)$(DATADIR)/man/man1/pumice.1'
	'$(program)' completions bash >'$(DESTDIR)$(DATADIR)/bash-completion/completions/pumice'
	'$(program)' completions zsh >'$(DESTDIR)$(DATADIR)/zsh/site-functions/_pumice'
	'$(program)' completions fish >'$(DESTDIR)$(DATADIR)/fish/vendor_completions.d/pumice.fish'
