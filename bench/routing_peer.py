"""semantic-router asked the same questions with the same vectors. Runs in an environment of its own.

Reads a NumPy archive (argument 1), writes the route of each question, or null, as JSON (argument 2).
"""

import json
import sys

import numpy as np
from semantic_router import IndexedRouter, Route  # type: ignore[import-not-found]
from semantic_router.encoders import DenseEncoder  # type: ignore[import-not-found]


def main() -> None:
    given = np.load(sys.argv[1], allow_pickle=False)
    known = dict(zip(given["utterances"].tolist(), given["vectors"].tolist(), strict=True))

    class Known(DenseEncoder):  # type: ignore[misc]
        """Vectors that were computed before."""

        name: str = "known"
        type: str = "known"

        def __call__(self, docs: list[str]) -> list[list[float]]:
            return [known[text] for text in docs]

    by_route: dict[str, list[str]] = {}
    for text, route in zip(given["utterances"].tolist(), given["routes"].tolist(), strict=True):
        by_route.setdefault(route, []).append(text)
    routes = [Route(name=name, utterances=utterances) for name, utterances in by_route.items()]
    router = IndexedRouter(Known(), routes)
    known.update(zip(given["asked"].tolist(), given["questions"].tolist(), strict=True))
    found = [getattr(router(text), "name", None) for text in given["asked"].tolist()]
    with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123 - runs by itself
        json.dump(found, file)


if __name__ == "__main__":
    main()
