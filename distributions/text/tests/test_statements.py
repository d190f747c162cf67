"""What users say about themselves, found without an LLM."""

import pytest

from afterword.schemas import EpisodeMessage
from afterword_text.statements import MOST_FACTS, first_person, statements
from tests.samples import an_episode_message


@pytest.mark.parametrize(
    ("sentence", "kind", "attribute"),
    [
        ("I live in Leeds.", "identity", "home_city"),
        ("Hi, I am Dana and I live in Leeds.", "identity", "home_city"),
        ("I have moved: I live in Porto now.", "identity", "home_city"),
        ("Well, I've just moved from Leeds to Porto.", "identity", "home_city"),
        ("I LIVE IN LEEDS.", "identity", "home_city"),
        ("My name is Jon.", "identity", "name"),
        ("It's John, not Jon.", "identity", "name"),
        ("My name is not Jon, but John.", "identity", "name"),
        ("Please call me Ada.", "identity", "name"),
        ("i work for a bank.", "identity", "employer"),
        ("My phone number is 555-0101.", "identity", "phone"),
        ("Remember that I'm allergic to nuts.", "constraint", None),
        ("oh before I forget: I'm allergic to penicillin, please remember that", "constraint", None),
        ("i don't eat pork", "constraint", None),
        ("My favourite colour is blue.", "preference", "favorite_color"),
        ("My sister Anna lives in Rome.", "relation", None),
        ("I have two kids.", "relation", "number_of_children"),
        ("My brother-in-law is a plumber.", "relation", None),
        ("I take 50 mg of sertraline.", "constraint", None),
        ("I play the bagpipes, neighbours hate it.", "identity", None),
        ("I'm planning a trip to Rome in May.", "plan", "plan_trip_to_rome"),
        ("We have cancelled the trip to Rome.", "plan", "plan_trip_to_rome"),
        ("We just moved from Leeds to Porto.", "identity", "home_city"),
        ("We're flying to Tokyo on 3 March.", "plan", None),
        ("We got married last June.", "relation", "marital_status"),
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
        ("Ik ben verhuisd, ik woon in Utrecht.", "identity", "home_city"),
        ("Ik woon nu in Utrecht.", "identity", "home_city"),
        ("Mon fils a 5 ans.", "relation", None),
        ("Minha filha é alérgica a ovos.", "relation", None),
        ("Je travaille chez Renault.", "identity", "employer"),
        ("Trabajo como enfermera.", "identity", "job"),
        ("ik ben mandenvlechter", "identity", "job"),
        ("Soy curtidor.", "identity", "job"),
        ("Ich bin Böttcherin.", "identity", "job"),
        ("Sono bottaio.", "identity", "job"),
    ],
)
def test_statements_about_oneself_are_found(sentence: str, kind: str, attribute: str | None) -> None:
    assert (kind, attribute) in [(one.kind, one.attribute) for one in statements(sentence) if one.status == "stated"]


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
        "J'ai 20 ans d'expérience.",
        "My name is still spelled wrong.",
        "Mein Name ist falsch geschrieben.",
        "Appelez-moi demain.",
        "My mother is calling.",
        "Mia madre è al telefono.",
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
        "My ears are ringing.",
        "My function takes a list of dogs and returns names.",
        "I have a spreadsheet with three tabs.",
        "I'm wearing my lucky socks.",
    ],
)
def test_passing_remarks_give_no_statement(sentence: str) -> None:
    assert [one for one in statements(sentence) if one.status != "ended"] == []


def said(*texts: str, role: str = "user") -> list[EpisodeMessage]:
    return [an_episode_message(f"m{n}", content=text, role=role, user_id="ann") for n, text in enumerate(texts)]


def known(*texts: str) -> list[str]:
    return [fact.statement for fact in first_person(said(*texts)) if fact.status != "ended"]


def ended(*texts: str) -> list[tuple[str, str | None]]:
    return [(fact.statement, fact.attribute) for fact in first_person(said(*texts)) if fact.status == "ended"]


def test_users_clauses_are_kept_with_their_message() -> None:
    messages = [
        an_episode_message("m1", content="Hello! I live in Leeds. How are you?", user_id="ann"),
        an_episode_message("m2", content="I live in Porto.", role="assistant"),
        an_episode_message("m3", content="I hate tea and I live in Leeds.", user_id="bob"),
    ]
    found = [(fact.statement, fact.user_id, fact.message_ids, fact.said_by) for fact in first_person(messages)]
    assert found == [
        ("I live in Leeds.", "ann", ("m1",), "user"),
        ("I hate tea", "bob", ("m3",), "user"),
        ("I live in Leeds.", "bob", ("m3",), "user"),
    ]


def test_last_of_many_statements_are_kept() -> None:
    found = first_person(said(" ".join(f"I am {n} years old." for n in range(100))))
    assert len(found) == MOST_FACTS
    assert found[-1].statement == "I am 99 years old."


def test_greeting_gives_name_job_and_city() -> None:
    found = {fact.attribute: fact.status for fact in first_person(said("Hi! I'm Marta, I'm a nurse in Porto"))}
    assert found == {"name": "implied", "job": "stated", "home_city": "implied"}


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("I can't eat sesame, what could I use instead?", "I can't eat sesame"),
        ("Soy vegana desde hace diez años, ¿cómo hago una tortilla?", "Soy vegana desde hace diez años"),
        ("Je suis intolérante au lactose, par quoi remplacer la crème ?", "Je suis intolérante au lactose"),
        ("Trabajo de soldadora ¿qué guantes uso?", "Trabajo de soldadora"),
        ("Would chess be good for my stepdaughter Amira?", "my stepdaughter Amira"),
    ],
)
def test_sentence_that_asks_may_state_something(text: str, statement: str) -> None:
    assert statement in known(text)


@pytest.mark.parametrize("text", ["I live in Leeds, right?", "Do I live in Leeds?", "Who says I like jazz?"])
def test_question_about_a_statement_states_nothing(text: str) -> None:
    assert known(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "I moved to Premium.",
        "We moved to Kubernetes.",
        "Please call me Tuesday.",
        "It's Java, not Python.",
        "No, it's Paris, not London.",
        "Mi chiamo fuori.",
        "My name isn't Karen.",
    ],
)
def test_pretended_value_replaces_no_real_one(text: str) -> None:
    assert [fact for fact in first_person(said(text)) if fact.attribute and fact.status != "ended"] == []


@pytest.mark.parametrize(
    "text",
    [
        "Let's play a game. I am a pirate captain. My name is Redbeard.",
        "I live in Berlin in this example.",
        "I LIVE IN BERLIN IN THIS EXAMPLE.",
        "I'm vegetarian, hypothetically.",
        "If I were diabetic, would this be ok?",
        "Write a story in which I am a retired pilot. I live in Reno.",
        '"I moved to Oslo. I have two sons," she wrote.',
        "She said I live in the past.",
        "I have ten children, just kidding.",
    ],
)
def test_frames_quotations_and_jokes_state_nothing(text: str) -> None:
    assert known(text) == []


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("La copine de mon fils est pompière à Brest et ne mange pas de porc.", "La copine de mon fils ne mange pas"),
        ("Tenho fome hoje e não como carne.", "não como carne"),
    ],
)
def test_linked_clause_keeps_the_person_it_is_about(text: str, statement: str) -> None:
    assert known(text)[-1].startswith(statement)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("I'm vegan or so my wife says.", "I'm vegan"),
        ("I'm vegan, or so I'm told.", "I'm vegan"),
        ("Ich bin vegan oder meine Frau sagt das.", "Ich bin vegan"),
    ],
)
def test_link_before_a_report_is_not_stated(text: str, statement: str) -> None:
    assert statement in known(text)


def test_frame_lasts_until_somebody_ends_it() -> None:
    assert known("Pretend you are a waiter.", "I'm Lord Pemberton. I live in Paris.") == []
    assert known("Pretend you are a waiter.", "I'm a lord.", "Game over. I live in Leeds.") == ["I live in Leeds."]
    before = said("Let's role-play.")
    assert first_person(said("I live in Paris."), before) == ()


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        ("I don't live in Porto any more.", "home_city"),
        ("I no longer work for Sonae.", "employer"),
        ("Ich wohne nicht mehr in Ulm.", "home_city"),
        ("Ya no vivo en Lima.", "home_city"),
        ("I'm not allergic to peanuts.", None),
        ("The peanut test was negative.", None),
        ("Hemos vendido la caravana.", None),
        ("Ich habe das Rauchen an den Nagel gehängt.", None),
        ("Forget that I have two dogs.", "number_of_dogs"),
        ("Please forget where I live.", "home_city"),
    ],
)
def test_denials_end_what_was_said(text: str, attribute: str | None) -> None:
    assert known(text) == []
    assert [one for _, one in ended(text)] == [attribute]


def test_forget_that_ends_the_previous_messages_statements() -> None:
    assert ended("I have two dogs.", "Forget that, please.") == [
        ("Forget that, please (I have two dogs.)", "number_of_dogs")
    ]
    found = first_person([an_episode_message("m9", content="Forget that.", user_id="ann")], said("I have two dogs."))
    assert [fact.status for fact in found] == ["ended"]
