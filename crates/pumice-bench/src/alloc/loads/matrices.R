# Solves, multiplies and sorts what R allocates for each step anew.
turns <- as.integer(commandArgs(TRUE)[1])
set.seed(1)
for (turn in seq_len(turns)) {
    a <- matrix(runif(300 * 300), 300)
    stopifnot(max(abs(a %*% solve(a) - diag(300))) < 1e-3)
    x <- runif(500000)
    y <- sqrt(x) * 2 + x / 3 - turn
    stopifnot(!is.unsorted(sort(y)), length(unique(round(y, 3))) > 100)
}
