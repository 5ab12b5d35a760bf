# Groups points by k-means, from several starts.
import sys

from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

points, _ = make_blobs(int(sys.argv[1]), 24, centers=12, random_state=1)
groups = KMeans(12, n_init=2, init="random", random_state=1).fit(points)
assert len(groups.cluster_centers_) == 12
