"""Titles without an LLM: noun phrases from the first request."""

import pytest

from afterword_text.extractive import summarize
from afterword_text.texts import TITLE_CHARACTERS
from benchmarks.quality import TITLES, titles
from tests.unit.summarizer.conversations import an_episode_of


def title(*said: str) -> str:
    return summarize(an_episode_of(*(("user", text) for text in said)), "", 20).title


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("How do I apply for disability benefits?", "Disability benefits"),
        ("I need to register my old motorcycle next year.", "Old motorcycle"),
        ("The bank notified the insurance company.", "Insurance company"),
        ("Find hotels in Lisbon for the weekend.", "Hotels in Lisbon for the weekend"),
        ("Am I eligible for federal student loan forgiveness?", "Federal student loan forgiveness"),
        ("He works at the New York State Department of Health.", "New York State Department of Health"),
        ("Can you help me plan a trip to Rome?", "Trip to Rome"),
        ("What would be the refund for a broken chair of yours?", "Refund for a broken chair"),
        ("I'm nervous about my interview at Siemens on Friday.", "Interview at Siemens on Friday"),
        ("I want to cancel order 4711, because the chair arrived broken.", "Order 4711"),
        ("We want to go to Lisbon in April, with our son Tim.", "Lisbon in April"),
        ("I'm planning a week in Kyoto from 3 to 9 May.", "Kyoto from 3 to 9 May"),
        ("I've accepted an offer from Siemens, starting 1 February.", "Offer from Siemens"),
        ("Explain the difference between mean and median.", "Difference between mean and median"),
        ("My doctor put me on 50 mg of sertraline.", "50 mg of sertraline"),
        ("What are some exercises for lower back pain?", "Exercises for lower back pain"),
        ("I have been learning Japanese for two years.", "Learning Japanese"),
        ("My internet has been down since this morning.", "My internet has been down since this morning"),
        ("Ich möchte die Reparatur meiner Waschmaschine bezahlen.", "Reparatur meiner Waschmaschine"),
        ("Je voudrais préparer un entretien d'embauche.", "Entretien d'embauche"),
        ("Quiero cambiar la fecha de mi vuelo a Lima.", "Fecha de mi vuelo a Lima"),
        ("Quick question about parental leave in Germany.", "Parental leave in Germany"),
        ("I sent 200 euros to the wrong IBAN and the bank says it's too late.", "200 euros to the wrong IBAN"),
        ("Order 5520 and invoice 77 were lost in the post.", "Order 5520 and invoice 77"),
        ("Rent and deposit were paid twice.", "Rent and deposit"),
        ("My mother got a new prescription for amlodipine and she's confused.", "New prescription for amlodipine"),
        ("Hello Dr. Novak, I'd like to move my dentist appointment.", "Dentist appointment"),
        ("I have two children.", "I have two children"),
        ("Two questions: when does my trial end?", "Trial end"),
        ("Ich habe vor drei Monaten ein Fahrrad bestellt.", "Fahrrad bestellt"),
        ("Seit gestern Abend geht das Internet nicht.", "Seit gestern Abend geht das Internet nicht"),
        ("Hola, ¿abrís el domingo?", "¿abrís el domingo?"),
        ("Necesito ideas para una cena el sábado, vienen 8 personas.", "Ideas para una cena"),
        ("J'ai besoin d'une liste pour notre week-end à Annecy.", "Liste pour notre week-end à Annecy"),
        ("来週の会議の準備を手伝ってください。", "来週の会議の準備を手伝ってください"),
        ("Je voudrais déplacer mon rendez-vous du 12 au 19 mars.", "Rendez-vous du 12 au 19 mars"),
        (
            "Ich möchte meiner Mutter zum 70. Geburtstag eine Reise schenken, sie kann nicht mehr so gut laufen.",
            "Mutter",
        ),
        ("We need to order the team shirts by end of week.", "Team shirts"),
        ("Hi, this is Ben Carver, my Skoda Octavia is with you for the MOT.", "Skoda Octavia"),
        ("Where is my order 5520?", "Order 5520"),
        ("Can I use my US passport as proof?", "US passport"),
        ("I completely forgot our anniversary last year so this time I want to do it properly.", "Anniversary"),
        ("Ma commande n'est toujours pas arrivée, elle devait être livrée lundi", "Commande"),
        ("I don't like the blue for the living room any more.", "Blue for the living room"),
        ("and my blood type is 0 negative", "Blood type"),
        ("Quiero un viaje de cinco días a Ciudad de México", "Viaje de cinco días a Ciudad de México"),
        ("Ho bisogno di aiuto per tradurre una lettera di tre pagine", "Lettera di tre pagine"),
        ("Marketing: I think a rubber case would be good.", "Rubber case"),
        ("Docker: the container does not start", "Docker: the container does not start"),
        ("He wants to raise the rent by 15%.", "Rent by 15%"),
        ("I'm looking for family benefits.", "Family benefits"),
        ("Mein Paket wurde gestern zugestellt.", "Mein Paket wurde gestern zugestellt"),
        ("Vorrei sapere come posso rinnovare il mio abbonamento annuale.", "Abbonamento annuale"),
        ("Je voudrais savoir s'il est possible de modifier l'adresse de livraison.", "Adresse de livraison"),
    ],
)
def test_title_is_its_sentences_noun_phrase(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "I was wondering whether you could help me figure out how to get my deposit back from my landlord because "
            "he claims I damaged the floor.",
            "Deposit back from my landlord",
        ),
        (
            "I don't know if this is the right place to ask, but my payslip for October shows a deduction that I don't "
            "recognise.",
            "Payslip for October",
        ),
        (
            "To be honest I'm not even sure where to start, but my roommate moved out without paying the electricity "
            "bill.",
            "Electricity bill",
        ),
        (
            "Apologies for the long message, but I ordered a standing desk and it arrived with the wrong legs.",
            "Standing desk",
        ),
        ("ok so launch: marketing wants the 14th, eng says the 21st earliest, and legal says nothing", "Launch"),
        (
            "I'm getting `TypeError: cannot read properties of undefined`.",
            "I'm getting TypeError: cannot read properties of undefined",
        ),
    ],
)
def test_long_opening_leads_to_its_topic(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


def test_first_request_outranks_later_ones() -> None:
    assert title("I want a refund for my ticket.", "The train was late.") == "Refund for my ticket"


def test_greetings_make_no_title() -> None:
    assert title("Hello, how are you?", "My washing machine leaks water.") == "Washing machine leaks water"


def test_single_word_gives_its_sentence_as_title() -> None:
    assert title("Hi, why is my sourdough so dense?") == "Why is my sourdough so dense?"


def test_message_of_one_word_is_no_title() -> None:
    assert title("WHAT", "I start at the museum shop in May.") == "Museum shop in May"


def test_title_is_whole() -> None:
    found = title("I need " + "the broken chair of the owner with " * 20 + "a cat.")
    assert len(found) <= TITLE_CHARACTERS
    assert found.endswith(("chair", "owner"))


def test_conversation_without_a_noun_phrase_has_a_title() -> None:
    assert title("We got married last year.") == "We got married last year."


def test_benchmark_titles_are_phrases_of_their_conversations() -> None:
    found = titles()
    assert len(found) == TITLES
    assert all(2 <= len(each) <= TITLE_CHARACTERS and each[0].isalnum() for each in found)
    assert sum(" " in each for each in found) >= 0.97 * TITLES


def test_form_of_address_ends_no_phrase() -> None:
    assert title("I take lessons with Ms. Okafor on Thursdays.") == "Lessons with Ms Okafor on Thursdays"
