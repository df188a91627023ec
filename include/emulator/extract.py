"""What can be said about a text without a model: its first sentences, frequent words, capitalised names."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

STOPWORD_LIST = """
a about above after again all also am an and any are as at be because been before being below
between both but by can could did do does doing down during each few for from further had has have
having he her here hers him his how i if in into is it its itself just like may me might more most
must my no nor not now of off on once one only or other our out over own same shall she should so
some such than that the their them then there these they this those through to too two under until
up us use used uses using very was we were what when where which while who whom why will with within
without would you your
"""
STOPWORDS = frozenset(STOPWORD_LIST.split())
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n")
MARK = re.compile(r"</?[A-Za-z][\w-]*>")
WORD = re.compile(r"[^\W\d_][\w'-]*")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
NAME = re.compile(r"\b[A-Z][\w'-]+(?:\s+(?:of\s+|the\s+)?[A-Z][\w'-]+)*")


class Extract:
    """A text taken apart, each part when first asked for."""

    def __init__(self, text: str) -> None:
        # Marks around a document are none of its words.
        self.text = MARK.sub(" ", text).strip()

    @cached_property
    def sentences(self) -> list[str]:
        """The text's sentences with single spaces; never empty."""
        found = [" ".join(each.split()) for each in SENTENCE_END.split(self.text)]
        return [each for each in found if each] or [" ".join(self.text.split()) or "No text was given."]

    @cached_property
    def keywords(self) -> list[str]:
        """Words by falling frequency, in lower case, without stop words and short ones."""
        counts = Counter(each.lower() for each in WORD.findall(self.text))
        kept = [(word, n) for word, n in counts.items() if len(word) > 2 and word not in STOPWORDS]
        return [word for word, _ in sorted(kept, key=lambda pair: (-pair[1], pair[0]))]

    @cached_property
    def entities(self) -> list[str]:
        """Capitalised phrases in order of appearance; a single word at a sentence's start doesn't count."""
        names: dict[str, None] = {}
        for sentence in self.sentences:
            for match in NAME.finditer(sentence):
                name = match.group()
                if match.start() == 0 and " " not in name and not name.isupper():
                    continue
                if name.lower() not in STOPWORDS:
                    names.setdefault(name)
        return list(names)

    @cached_property
    def numbers(self) -> list[float]:
        """Numbers in order of appearance."""
        return [float(each) for each in NUMBER.findall(self.text)]

    @cached_property
    def question(self) -> str | None:
        """The last sentence that asks something."""
        asked = [each for each in self.sentences if each.endswith("?")]
        return asked[-1] if asked else None

    def summary(self, words: int = 60) -> str:
        """The first sentences, up to about so many words; at least one."""
        taken: list[str] = []
        length = 0
        for sentence in self.sentences:
            length += len(sentence.split())
            if taken and length > words:
                break
            taken.append(sentence)
        return " ".join(taken)

    def title(self) -> str:
        """The first sentence's first words."""
        words = self.sentences[0].rstrip(".!?").split()
        return " ".join(words[:10])

    def answer(self) -> str:
        """The sentence that shares most words with the question; without a question, the summary."""
        if self.question is None:
            return self.summary()
        asked = {each.lower() for each in WORD.findall(self.question)} - STOPWORDS
        others = [each for each in self.sentences if not each.endswith("?")]
        if not others:
            return self.summary()
        return max(others, key=lambda each: len(asked & {word.lower() for word in WORD.findall(each)}))
