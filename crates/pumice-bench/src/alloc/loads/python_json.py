# Reads JSON into objects, three times.
import json
import sys

count = int(sys.argv[1])
words = [{"id": i, "name": str(i) * 3, "tags": [i, i + 1, i + 2]} for i in range(count)]
text = json.dumps(words)
for _ in range(3):
    again = json.loads(text)
    index = {entry["name"]: entry for entry in again}
    assert len(index) == count
