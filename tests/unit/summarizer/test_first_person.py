"""What users say about themselves, found without an LLM."""

import pytest

from afterword.streams.summarizer.facts import MOST_FACTS, first_person, kind_of
from tests.samples import an_episode_message


@pytest.mark.parametrize(
    ("sentence", "kind", "attribute"),
    [
        ("I live in Leeds.", "identity", "home_city"),
        ("Hi, I am Dana and I live in Leeds.", "identity", "home_city"),
        ("I have moved: I live in Porto now.", "identity", "home_city"),
        ("Well, I've just moved from Leeds to Porto.", "identity", "home_city"),
        ("My name is Jon.", "identity", "name"),
        ("It's John, not Jon.", "identity", "name"),
        ("My name is not Jon, but John.", "identity", "name"),
        ("Please call me Ada.", "identity", "name"),
        ("i work for a bank.", "identity", "employer"),
        ("My phone number is 555-0101.", "identity", "phone"),
        ("Remember that I'm allergic to nuts.", "constraint", None),
        ("oh before I forget: I'm allergic to penicillin, please remember that", "constraint", None),
        ("i don't eat pork", "constraint", None),
        ("My favourite colour is blue.", "preference", "favourite_colour"),
        ("My sister Anna lives in Rome.", "relation", None),
        ("I have two kids.", "relation", None),
        ("My brother-in-law is a plumber.", "relation", None),
        ("I take 50 mg of sertraline.", "constraint", None),
        ("I'm planning a trip to Rome in May.", "plan", "plan_trip_to_rome"),
        ("We have cancelled the trip to Rome.", "plan", "plan_trip_to_rome"),
        ("We just moved from Leeds to Porto.", "identity", "home_city"),
        ("We're flying to Tokyo on 3 March.", "plan", None),
        ("I've accepted an offer from Siemens.", "event", None),
        ("Our cat is called Momo.", "relation", None),
        ("I run every morning before work.", "preference", None),
        ("Please always answer in German.", "preference", None),
        ("Never use emojis with me.", "preference", None),
        ("I always want metric units.", "preference", None),
        ("my brother's vegetarian", "relation", None),
        ("I've been on lisinopril 10 mg for two weeks.", "constraint", None),
        ("my new address is 17 Larch Road", "identity", "address"),
        ("Remember: the spare key is at the neighbour's.", "constraint", None),
        ("Please remember that the spare key is at the neighbour's.", "constraint", None),
        ("Ich wohne jetzt in Bonn.", "identity", "home_city"),
        ("Ich bin allergisch gegen Nüsse.", "constraint", None),
        ("J'habite à Lyon.", "identity", "home_city"),
        ("Je suis allergique aux noix.", "constraint", None),
        ("Soy alérgica a las nueces.", "constraint", None),
        ("Mi hermana vive en Roma.", "relation", None),
        ("Mi chiamo Ada.", "identity", "name"),
        ("Eu moro em Lisboa.", "identity", "home_city"),
        ("Ik ben verhuisd, ik woon in Utrecht.", None, None),
        ("Ik woon nu in Utrecht.", "identity", "home_city"),
        ("Mon fils a 5 ans.", "relation", None),
        ("Minha filha é alérgica a ovos.", "relation", None),
        ("Je travaille chez Renault.", "identity", "employer"),
        ("Trabajo como enfermera.", "identity", "job"),
    ],
)
def test_statements_of_people_about_themselves(sentence: str, kind: str | None, attribute: str | None) -> None:
    assert (kind_of(sentence) or (None, None)) == (kind, attribute)


@pytest.mark.parametrize(
    "sentence",
    [
        "Do I live in Leeds?",
        "I'd like to know more.",
        "I like it.",
        "I love that idea.",
        "I am sure that this works.",
        "I have a question.",
        "My order is late.",
        "My question is simple.",
        "She lives in Leeds.",
        "I am a bit lost.",
        "We're learning about these things.",
        "We don't have to do it every week.",
        "Never mind.",
        "I'm going to cry.",
        "If I live in Leeds, I pay less.",
        "I live in fear of this exam.",
        "I moved to the next step.",
        "I work for 8 hours.",
        "Call me when you're done.",
        "My email is not working.",
        "My phone is an old Pixel 4a.",
        "J'ai 20 ans d'expérience.",
        "My name is still spelled wrong.",
        "Mein Name ist falsch geschrieben.",
        "Appelez-moi demain.",
        "My mother is calling.",
        "Mia madre è al telefono.",
        "Mijn hond is weggelopen.",
        "Meu pai tem o mesmo problema.",
        "I work for free basically.",
        "Ik werk voor nu met de oude versie.",
        "Je travaille comme un fou.",
        "Trabajo como puedo.",
        "Vivo en una pesadilla.",
        "Eu me mudei para o plano anual.",
        "Não como antes.",
        "Tengo 3 años pagando.",
        "I'm moving to the next question.",
    ],
)
def test_what_says_nothing_that_lasts(sentence: str) -> None:
    assert kind_of(sentence) is None


def test_whole_sentences_of_users_are_kept_with_their_message() -> None:
    messages = [
        an_episode_message("m1", content="Hello! I live in Leeds. How are you?", user_id="ann"),
        an_episode_message("m2", content="I live in Porto.", role="assistant"),
        an_episode_message("m3", content="I hate tea. I live in Leeds.", user_id="bob"),
    ]
    found = [(fact.statement, fact.user_id, fact.message_ids, fact.said_by) for fact in first_person(messages)]
    assert found == [
        ("I live in Leeds.", "ann", ("m1",), "user"),
        ("I hate tea.", "bob", ("m3",), "user"),
        ("I live in Leeds.", "bob", ("m3",), "user"),
    ]


def test_of_many_statements_the_last_ones_are_kept() -> None:
    message = an_episode_message("m1", content=" ".join(f"I am {n} years old." for n in range(100)))
    found = first_person([message])
    assert len(found) == MOST_FACTS
    assert found[-1].statement == "I am 99 years old."
