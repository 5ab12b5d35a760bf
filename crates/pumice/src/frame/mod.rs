//! Zones of frames and the ledger that says which are taken and which are zero.
