"""Questions about the user as such."""

import pytest

from afterword.reading.profile import answering, profile
from afterword_text.word_model import asked_in_known_words, asked_of_user
from tests.samples import a_fact, of_user

QUESTIONS = {
    "general": [
        "What do you know about me?",
        "Who am I?",
        "tell me everything you remember",
        "can you describe me in a sentence or two",
        "Was weißt du über mich?",
        "Wer bin ich?",
        "Que sais-tu de moi ?",
        "Qui suis-je ?",
        "¿Qué sabes de mí?",
        "¿Quién soy?",
        "O que você sabe sobre mim?",
        "Quem sou eu?",
        "Cosa sai di me?",
        "Chi sono io?",
        "Wat weet je over mij?",
        "Wie ben ik?",
        "Hvad ved du om mig?",
        "Hvem er jeg?",
    ],
    "name": [
        "what's my name?",
        "Do you remember my name",
        "Wie heiße ich?",
        "Comment je m'appelle ?",
        "¿Cómo me llamo?",
        "Como me chamo?",
        "Come mi chiamo?",
        "Hoe heet ik?",
        "Hvad hedder jeg?",
    ],
    "home": ["Where do I live?", "wo wohn ich eigentlich", "J'habite où, déjà ?", "¿Dónde vivo?", "Hvor bor jeg?"],
    "work": ["so what do I do for work again", "Was arbeite ich?", "Che lavoro faccio?", "Wat is mijn beroep?"],
    "age": ["How old am I?", "Wie alt bin ich?", "Quel âge ai-je ?"],
    "health": ["What am I allergic to?", "Was vertrage ich nicht?", "À quoi suis-je allergique ?"],
}


@pytest.mark.parametrize(("thing", "question"), [(thing, one) for thing, all_ in QUESTIONS.items() for one in all_])
def test_questions_about_the_user_are_recognized(thing: str, question: str) -> None:
    assert asked_of_user(question) == thing


@pytest.mark.parametrize(
    ("thing", "question"),
    [
        ("general", "Have you got any information stored on me?"),
        ("general", "Fais un petit portrait de moi."),
        ("general", "Faz um resumo da minha pessoa."),
        ("name", "tu te rappelles mon prénom ?"),
        ("work", "what line of work am I in"),
        ("health", "que doença tenho eu, lembras-te?"),
    ],
)
def test_question_in_other_words_is_recognized_by_the_model(thing: str, question: str) -> None:
    assert asked_in_known_words(question) is None
    assert asked_of_user(question) == thing


@pytest.mark.parametrize("text", ["I'm Mirjana", "Soy Xavi.", "I'm allergic to latex", "Je travaille à la mairie."])
def test_statement_about_oneself_is_no_question(text: str) -> None:
    assert asked_of_user(text) is None


@pytest.mark.parametrize(
    "question",
    [
        "What do you know about my trip to Rome?",
        "What did she tell me about the lease?",
        "Tell me about the best of me and my friends' trips",
        "Who is coming to dinner?",
        "What is the name of my dentist?",
        "Where does Ana live?",
        "Remind me about the plumber",
        "What do you remember about the concert?",
        "Wo wohnt meine Schwester?",
        "Wer kommt am Montag?",
        "x" * 2000 + " what do you know about me?",
    ],
)
def test_questions_with_a_subject_are_not_about_the_user(question: str) -> None:
    assert asked_of_user(question) is None


def test_facts_with_the_asked_name_come_first() -> None:
    facts = [
        of_user(a_fact("is a nurse", attribute="job", message_ids=("m1",)), 1),
        of_user(a_fact("lives in Porto", attribute="home_city", message_ids=("m2",)), 2),
        of_user(a_fact("lives in Rome", attribute="home_city", about="Ann", message_ids=("m3",)), 3),
    ]
    known = profile("u1", None, facts).facts
    assert answering("home", known) == {"c1:2": ["m2"], "c1:1": ["m1"]}
    assert answering("name", known) == {}
    assert answering("general", known).keys() == {"c1:1", "c1:2", "c1:3"}
