"""Languages told of real sentences (article 1 of the Universal Declaration of Human Rights), and what has none."""

import pytest

from eagle3lab.data.language import SAMPLE, UNCLEAR, language_of

ARTICLE_1 = {
    "en": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "ja": "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق وقد وهبوا عقلا وضميرا.",
}
CODE = "```python\nfor element in range(10):\n    print(element)\n```"


@pytest.mark.parametrize("language", ARTICLE_1)
def test_a_sentence_is_enough(language):
    assert language_of(ARTICLE_1[language]) == language


@pytest.mark.parametrize("text", ["", "  \n", "ok", "12345", "1. 1. 1. 1. 1.", "👍👍👍👍", "| --- | --- |", CODE])
def test_what_is_not_prose_is_unclear(text):
    assert language_of(text) == UNCLEAR


def test_code_between_fences_does_not_count():
    assert language_of(f"{ARTICLE_1['de']}\n{CODE * 20}") == "de"
    assert language_of(f"{CODE}\n{ARTICLE_1['fr']}\n```\nan open fence with English words in it") == "fr"


def test_the_beginning_decides():
    assert language_of(ARTICLE_1["en"] * (SAMPLE // 60) + ARTICLE_1["ru"] * 1000) == "en"
