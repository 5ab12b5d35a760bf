//! scrubd: what to zero next, when to stop, how not to be noticed.
