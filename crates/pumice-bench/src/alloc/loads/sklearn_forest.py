# Fits a random forest, on all processors.
import sys

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

x, y = make_classification(10_000, 30, n_informative=12, random_state=1)
forest = RandomForestClassifier(int(sys.argv[1]), n_jobs=-1, random_state=1).fit(x, y)
assert forest.score(x, y) > 0.9
