# Fits a random forest, on all processors, and groups points by k-means.
import sys

from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_classification
from sklearn.ensemble import RandomForestClassifier

size = int(sys.argv[1])
x, y = make_classification(size, 30, n_informative=12, random_state=1)
forest = RandomForestClassifier(4, n_jobs=-1, random_state=1).fit(x, y)
assert forest.score(x, y) > 0.9
points, _ = make_blobs(size, 24, centers=12, random_state=1)
groups = KMeans(12, n_init=2, init="random", random_state=1).fit(points)
assert len(groups.cluster_centers_) == 12
