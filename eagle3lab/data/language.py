"""The language a text is written in, told by py3langid: naive Bayes over byte n-grams, 139 languages, numpy alone."""

import re
from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

SAMPLE = 2000  # characters looked at; 0.5 ms
LEAST = 0.8  # of the posterior, below which a name would be a guess
UNCLEAR = "unclear"
NO_LANGUAGE = "zxx"  # ISO 639's code for "no linguistic content"
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


@cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_of(text: str) -> str:
    """ISO 639 code of the language of a text's beginning, UNCLEAR below a posterior of LEAST.

    Code between fences does not count. Lists of numbers, code without fences and texts of a few words are unclear.
    """
    prose = _FENCED.sub(" ", text[:SAMPLE])
    language, posterior = _identifier().classify(prose)
    return language if posterior >= LEAST and language != NO_LANGUAGE else UNCLEAR
