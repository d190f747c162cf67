"""Summaries made of a conversation's own sentences."""

import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.extractive import condense, summarize
from afterword_text.extractive.ranking import informativeness, is_politeness
from afterword_text.language import stem_words
from afterword_text.sentences import MAX_MESSAGE_CHARACTERS, sentences_of, split_sentences
from afterword_text.texts import MAX_SUMMARY_LENGTH, TITLE_CHARACTERS, Texts
from benchmarks.quality import TITLES, titles
from tests.rows import with_rows
from tests.samples import a_closed_episode, an_episode_message
from tests.unit.summarizer.conversations import Turn, an_episode_of, dialogues

DIALOGUES_PER_EPISODE = 4
WHO = ("sister", "neighbour", "colleague", "grandmother", "trainer", "landlord", "cousin")

ORDER: tuple[Turn, ...] = (
    ("user", "Hello!"),
    ("assistant", "Hello, how can I help you?"),
    ("user", "I want to cancel my order 4711, because the chair arrived broken."),
    ("assistant", "I am sorry to hear that. Order 4711 was delivered on 3 May, so you can return the chair."),
    ("user", "When do I get the money back?"),
    ("assistant", "The refund of $129 reaches your account within five days."),
    ("user", "Thanks."),
    ("assistant", "You're welcome. Is there anything else I can help you with?"),
)


WOODS = [
    *("oak", "elm", "ash", "fir", "yew", "beech", "birch", "cedar", "maple", "larch", "alder", "hazel"),
    *("linden", "poplar", "willow", "walnut", "cherry", "spruce", "rowan", "holly", "olive", "teak", "ebony", "palm"),
]


def summary_of(*turns: Turn, previous: str = "") -> Texts:
    return summarize(an_episode_of(*turns), previous, 800)


def texts(summary: Texts) -> list[str]:
    return [summary.title, summary.short_summary, summary.long_summary, summary.rolling_summary]


def test_summary_tells_the_request_and_its_outcome() -> None:
    summary = summary_of(*ORDER)
    assert "order 4711" in summary.short_summary
    assert summary.short_summary.startswith("User: ")
    assert "Assistant: " in summary.short_summary
    for fact in ("broken", "3 May", "$129"):
        assert fact in summary.long_summary


def test_politeness_is_omitted() -> None:
    for text in texts(summary_of(*ORDER)):
        assert not re.search(r"how can I help|welcome|anything else|Thanks|Hello", text)


def test_statement_without_letters_is_omitted() -> None:
    summary = summary_of(("user", "I finished chapter two of my book. ->-> 4,12. It took me nine days."), *ORDER)
    assert "nine days" in summary.long_summary
    assert not any("4,12" in text for text in texts(summary))


def test_sentences_keep_their_order() -> None:
    said = " ".join(text for _, text in ORDER)
    told = re.sub(r"(User|Assistant): ", "", summary_of(*ORDER).long_summary)
    places = [said.index(sentence) for sentence in split_sentences(told)]
    assert places == sorted(places)


def test_title_is_a_phrase_about_the_topic() -> None:
    title = summary_of(*ORDER).title
    assert {"order", "chair"} & set(title.lower().split())
    assert title[0].isupper()
    assert not title.endswith((".", "?", "…", " the", " a"))


def test_long_episode_has_a_long_and_a_brief_summary() -> None:
    for turns in (turns for turns in dialogues() if sum(len(text) for _, text in turns) > 700):
        summary = summary_of(*turns)
        assert len(split_sentences(summary.long_summary)) >= 3
        assert len(summary.short_summary) <= 400
        assert len(summary.long_summary) <= 1000


def test_facts_and_decisions_outrank_filler() -> None:
    told = [turn for dialogue in dialogues()[:2] for turn in dialogue]
    said = (
        ("user", "Ben is allergic to peanuts, and Mila doesn't eat meat."),
        ("assistant", "Fun!"),
        ("user", "We decided to take the train on 3 May."),
    )
    short = summary_of(*told, *said).short_summary
    assert "Ben is allergic to peanuts" in short
    assert "train on 3 May" in short
    assert "Fun!" not in short


CHOICES = (
    ("Granite needs sealing every year, quartz does not.", "OK, let's go with quartz"),
    ("There is a slot on Tuesday and one on Thursday.", "Great, Thursday!"),
    ("You could paint it sage or navy.", "Sage it is."),
)


@pytest.mark.parametrize(("offer", "choice"), CHOICES)
def test_choices_outrank_self_descriptions(offer: str, choice: str) -> None:
    told = [("user", f"My {who} often tells me about the long walks that we once liked.") for who in WHO]
    short = summary_of(("assistant", offer), *told, ("user", choice)).short_summary
    assert choice.rstrip("!.") in short
    assert len(summary_of(*told).long_summary) > 400


def test_choice_does_not_repeat_the_offer() -> None:
    table = ("user", "I need a table for 4 on March 12, at Bella Napoli or at Roma?")
    summary = summary_of(table, ("assistant", "Roma has a table at 7 pm on March 12."), ("user", "Roma then"))
    assert "Roma then" in summary.short_summary


def test_question_about_an_offer_is_no_choice() -> None:
    told = [("user", f"My {who} often tells me about the long walks that we once liked.") for who in WHO]
    summary = summary_of(("assistant", CHOICES[1][0]), *told, ("user", "Great, Thursday?"))
    assert "Thursday?" not in summary.short_summary


GREETED = (
    ("Good morning! How can I help you today?", "Good morning"),
    ("Is that all? Have a nice evening!", "Have a nice evening too!"),
    ("Anything else I can help with?", "No, thanks for your help"),
    ("Ist das alles? Einen schönen Tag noch!", "Einen schönen Tag noch"),
)


@pytest.mark.parametrize(("greeting", "answer"), GREETED)
def test_returned_greeting_chooses_nothing(greeting: str, answer: str) -> None:
    told = ("user", "I need to move my flight to Oslo to Friday.")
    summary = summary_of(told, ("assistant", "It is moved."), ("assistant", greeting), ("user", answer))
    assert answer.rstrip("!") not in summary.long_summary


@with_rows
def test_greeting_with_number_decision_or_request_stays(told: str) -> None:
    assert told in summary_of(("assistant", "Which flight is it about, please?"), ("user", told)).short_summary


def test_question_to_a_named_person_stays() -> None:
    asked, answer = ("user", "Hi Peter, is the sofa still available?"), ("user", "Yes, it costs 220 euros.")
    assert summary_of(asked, answer).short_summary.startswith(f"User: {asked[1]}")


def test_unoffered_thing_is_no_choice() -> None:
    offer, remark = CHOICES[0][0], "Wow, marble"
    told = [("user", f"My {who} often tells me about the long walks that we once liked.") for who in WHO]
    assert remark not in summary_of(("assistant", offer), *told, ("user", remark)).short_summary


@pytest.mark.parametrize("thanks", ["Thanks for the tips!", "Great tips, thanks", "Thank you for the coffee tips"])
def test_thanks_choose_nothing(thanks: str) -> None:
    tips = ("assistant", "Here are some tips: avoid coffee after noon, and keep the room dark.")
    summary = summary_of(("user", "How do I sleep better?"), tips, ("user", thanks))
    assert thanks.rstrip("!") not in summary.long_summary


TRIP: tuple[Turn, ...] = (
    ("user", "Can you help me plan a trip to Rome?"),
    ("assistant", "Of course! How many days will you stay?"),
    ("user", "Five. Remember that my daughter is allergic to nuts."),
    (
        "assistant",
        "Noted.\n\n**Ideas**\n\nYou could do this:\n\n1. *Colosseum*\n2. [Vatican](https://a.example)\n\n### Tip",
    ),
    ("user", "We moved: send the tickets to Gartenstr. 5. Is the museum open on Sundays?"),
    ("assistant", "Let me check."),
    ("user", "ok"),
    ("assistant", "Yes, from 9 to 14."),
)


def test_question_is_followed_by_its_own_answer() -> None:
    long = summary_of(*TRIP).long_summary
    assert "Is the museum open on Sundays? Assistant: Yes, from 9 to 14." in long
    assert "plan a trip to Rome? Assistant: How many days will you stay? User: Five." in long


@pytest.mark.parametrize("brief", ["Yes.", "No!", "I asked."])
def test_brief_answer_comes_with_its_reason(brief: str) -> None:
    reason = "Brazilian citizens need a visitor visa, which costs 185 USD."
    answer = ("assistant", f"{brief} {reason} " + "The steps are described on the page of the embassy in Dublin. " * 6)
    asked = ("user", "I am going to New York in October. Do I need a visa?")
    assert f"Do I need a visa? Assistant: {brief} {reason}" in summary_of(asked, answer).short_summary


def test_statement_after_a_question_stays_after_it() -> None:
    long = summary_of(
        ("user", "Can I return the lamp? It arrived broken."), ("assistant", "Yes, until 3 May.")
    ).long_summary
    assert long == "User: Can I return the lamp? It arrived broken. Assistant: Yes, until 3 May."


def test_exclamation_is_not_taken_for_the_answer() -> None:
    told = ("user", "What could we give grandpa?"), ("assistant", "Wow, 90! A radio with big buttons.")
    assert "grandpa? Assistant: Wow, 90! A radio with big buttons." in summary_of(*told).long_summary


def test_several_short_sentences_of_an_answer_stay() -> None:
    answer = "I understand. I have refunded £249.00 to your card. Your ticket number is 88213. It takes three days."
    long = summary_of(
        ("user", "I'd rather have my money back for the espresso machine."), ("assistant", answer)
    ).long_summary
    assert "£249.00" in long
    assert "88213" in long


def test_polite_frame_of_a_letter_is_omitted() -> None:
    letter = "> Sehr geehrte Frau Brandt,\n>\n> Mia fehlt am Montag.\n>\n> Mit freundlichen Grüßen"
    long = summary_of(("user", "Ich brauche eine Mail an die Lehrerin von Mia."), ("assistant", letter)).long_summary
    assert "Mia fehlt am Montag." in long
    assert not re.search("Brandt|Grüßen", long)


def test_table_without_prose_is_read_without_bars() -> None:
    assert sentences_of("| Term | Monthly |\n| --- | ---: |\n| 25 years | £1,464 |") == (
        "Term, Monthly.",
        "25 years, £1,464.",
    )


def test_list_keeps_its_last_mark_and_loses_boxes() -> None:
    assert sentences_of("Ask:\n- [ ] Is it covered?\n- [x] How long?") == ("Ask: Is it covered?; How long?",)


def test_item_that_introduces_code_has_no_final_colon() -> None:
    answer = "You could:\n\n1. Read `chunksize` rows:\n```\nread(chunksize=9)\n```\n2. Use Polars."
    assert sentences_of(answer) == ("You could: Read chunksize rows; Use Polars.",)


def test_code_loses_its_outer_marks() -> None:
    assert sentences_of("Use `git reset HEAD~1`.") == ("Use git reset HEAD~1.",)


def test_line_ending_in_a_quotation_is_a_sentence() -> None:
    assert sentences_of('It says "no entry"\nWhat now?') == ('It says "no entry".', "What now?")
    assert sentences_of('It says "No entry."') == ('It says "No entry."',)


def test_question_is_not_joined_to_an_unrelated_answer() -> None:
    long = summary_of(
        ("user", "Where is my order 4711-22?"), ("assistant", "Order 8830-07 was delivered yesterday."), ("user", "No!")
    ).long_summary
    assert "?" not in long
    assert "8830-07" in long


def test_question_is_not_joined_to_a_later_messages_answer() -> None:
    long = summary_of(
        ("user", "Could you swap Wednesday? We had risotto last week."),
        ("assistant", "Let me see."),
        ("user", "And our budget is 80 dollars for the week."),
        ("assistant", "That is enough; the ingredients cost 65 dollars."),
    ).long_summary
    assert "Wednesday?" not in long
    assert "65 dollars" in long


def test_self_descriptions_are_in_the_short_summary() -> None:
    short = summary_of(*TRIP).short_summary
    assert "allergic to nuts" in short
    assert "We moved: send the tickets to Gartenstr. 5." in short


def test_markdown_and_list_marks_are_omitted() -> None:
    long = summary_of(*TRIP).long_summary
    assert "You could do this: Colosseum; Vatican." in long
    assert not re.search(r"[*#\[\]]|https|Ideas|Tip|\d\. ?Col", long)


def test_first_sentence_of_a_long_answer_stays() -> None:
    answer = "Solar panels last 25 years. " + " ".join(f"Model {n} has {n} cells." for n in range(10, 30))
    long = summary_of(("user", "How long do solar panels last?"), ("assistant", answer)).long_summary
    assert long == "User: How long do solar panels last? Assistant: Solar panels last 25 years."


@pytest.mark.parametrize("characters", range(60, 1000, 47))
def test_smaller_budget_has_fewer_whole_sentences(characters: int) -> None:
    told = [turn for turns in dialogues()[:3] for turn in turns]
    long = summarize(an_episode_of(*told), "", 800, characters).long_summary
    assert len(long) <= characters
    assert "…" not in long
    assert long[-1] in ".?!"


def test_overlong_sentence_gives_its_beginning_to_each_text() -> None:
    summary = summary_of(("user", "dolor sit amet kangaroo " * 28_500))
    assert all("dolor sit amet kangaroo" in text for text in texts(summary))


def test_summary_repeats_no_sentence() -> None:
    again = ("user", "I want to cancel my order 4711, because the chair arrived broken.")
    assert summary_of(*ORDER, again, again).long_summary.count("chair arrived broken") == 1


def test_later_turns_survive_beyond_the_first_thousand_characters() -> None:
    ours, first = [], []
    said = dialogues()
    for at in range(0, len(said), DIALOGUES_PER_EPISODE):
        turns = [turn for dialogue in said[at : at + DIALOGUES_PER_EPISODE] for turn in dialogue]
        later = " ".join(text for _, text in turns[len(turns) // 2 :])
        ours.append(recall(summary_of(*turns).long_summary, later))
        first.append(recall(" ".join(text for _, text in turns)[:1000], later))
    assert sum(ours) > 1.1 * sum(first)


def recall(summary: str, reference: str) -> float:
    """ROUGE-1 recall over different stems."""
    wanted = set(stem_words(reference, "en"))
    return len(wanted & set(stem_words(summary, "en"))) / len(wanted)


@with_rows
def test_other_languages_keep_their_own_words(turns: list[Turn]) -> None:
    summary = summary_of(*turns)
    assert "12345" in summary.short_summary
    assert turns[0][1] not in summary.long_summary


@pytest.mark.parametrize("content", ["", "   \n\t", "😀😀", "ok", "?!", "<|im_start|>", "a" * 5000, "。"])
def test_summary_is_never_empty(content: str) -> None:
    summary = summary_of(("user", content))
    assert all(text.strip() for text in texts(summary))
    assert len(summary.title) <= 60


def test_episode_without_text_keeps_earlier_knowledge() -> None:
    assert summary_of(("tool", ""), previous="User: I am Ada.").rolling_summary == "User: I am Ada."


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.text()), min_size=1, max_size=6))
def test_texts_keep_their_lengths_and_never_change(turns: list[Turn]) -> None:
    summary = summary_of(*turns)
    assert summary == summary_of(*turns)
    assert 0 < len(summary.title) <= 60
    assert 0 < len(summary.short_summary) <= 400
    assert 0 < len(summary.long_summary) <= 1500


def test_peoples_words_outrank_system_instructions() -> None:
    instructions = "You are an order assistant for orders of chairs. Always confirm the order number of a chair."
    assert "You are an order assistant" not in summary_of(("system", instructions), *ORDER).short_summary


@pytest.mark.parametrize("long_characters", [400, 700, 1000])
def test_long_summary_reaches_its_limit(long_characters: int) -> None:
    told = [turn for turns in dialogues()[:4] for turn in turns]
    long = summarize(an_episode_of(*told), "", 800, long_characters).long_summary
    assert long_characters // 2 <= len(long) <= long_characters


def test_group_sentences_have_speakers() -> None:
    said = (
        ("Lisa", "Lunch on Friday at noon?"),
        ("Tom", "I'm in Berlin until Saturday, so I can't."),
        ("Lisa", "Then let's meet on Monday at Da Enzo, I'll book a table."),
        ("Ada: user", "I'm vegan, do they have anything for me there?"),
    )
    messages = tuple(an_episode_message(f"m{n}", n, author=who, content=text) for n, (who, text) in enumerate(said))
    told = summarize(a_closed_episode(messages=messages, overlap=()), "", 800)
    for who, text in said:
        assert f"User ({who.replace(': ', ' ')}): {text}" in told.long_summary
    assert told.rolling_summary.count("User (") >= 3


def test_heading_introduces_its_list() -> None:
    answer = "**Ingredients**\n- 200 g flour\n- 2 eggs\n\n## Steps\n1. Whisk.\n2. Fry.\n\n### Tip\nServe hot."
    assert sentences_of(answer) == ("Ingredients: 200 g flour; 2 eggs.", "Steps: Whisk; Fry.", "Serve hot.")


PASTED = {
    "trace": "\n".join(f"\tat com.acme.pool.P{n}.take(P{n}.java:{n})" for n in range(45)),
    "log": "\n".join(f"2026-11-20 10:{n}:01,110 WARN  [worker-{n}] retry of upstream pay-{n}" for n in range(10, 55)),
    "csv": "\n".join(["id,sku,qty,price", *(f"{n},SK-{n},{n},1.{n}0" for n in range(120))]),
    "table": "\n".join(f"pod-{n}      Running      {n}d      node-{n}" for n in range(40)),
    "progress": "\n".join(f"remote: Resolving deltas: {n}% ({n}/100)" for n in range(60)),
    "prose in a log": "\n".join(f"INFO Starting the application server {n}" for n in range(60)),
    "base64": "eUK98iEG8IR3YvDzy012TccHIFEVmg" * 30,
}


@pytest.mark.parametrize("kind", PASTED)
def test_pasted_machine_text_leaves_space_for_speech(kind: str) -> None:
    answer = ("assistant", "The pool is closed by the nightly job; move the job to 3 am.")
    summary = summary_of(("user", f"Why does this stop?\n{PASTED[kind]}"), answer, ("user", "Moved it, fixed."))
    assert "move the job to 3 am" in summary.short_summary
    assert "Moved it, fixed." in summary.short_summary
    line = PASTED[kind].splitlines()[0].strip()[:20]
    assert not any(line in text for text in texts(summary))


def test_machine_text_is_summarized_if_nothing_else_exists() -> None:
    assert summary_of(("user", "id,sku,qty\n1,SK-1,12\n2,SK-2,30")).short_summary.startswith("User: ")


def test_words_a_user_passes_on_are_marked() -> None:
    mail = "From: Heatwell\nSent: Monday\nSubject: boiler\n\nYour boiler is a Model J. Its tank is for 9 litres."
    summary = summary_of(
        ("user", f"Not true. My boiler is a Model K.\n\n{mail}"), ("assistant", "Corrected to Model K.")
    )
    for text in (summary.short_summary, summary.long_summary):
        assert "User: Not true. My boiler is a Model K." in text
        assert "forwarded: Your boiler is a Model J." in text
        assert "Heatwell" not in text
    assert "Model J" not in summary.title


def test_mail_history_does_not_repeat() -> None:
    history = "On Tue, 26 May 2026 at 09:12, Stoveco wrote:\n> We ship your stove on 3 June."
    told = summary_of(
        ("assistant", "We ship your stove on 3 June."), ("user", f"Please make it 10 June instead.\n\n{history}")
    ).long_summary
    assert told == "Assistant: We ship your stove on 3 June. User: Please make it 10 June instead."


TALK: tuple[Turn, ...] = (
    ("user", "Is there parking nearby?"),
    ("assistant", "There is a garage in Mill Lane, two minutes away; it costs 3 euros an hour until midnight."),
    ("user", "And a cloakroom? I need one for 4 coats and 2 hats, because we come straight from the ferry at 18:40."),
    ("assistant", "Yes, it is free of charge and open until one."),
    ("user", "I want to bring a cake from Bakery Lund, and my mother is allergic to nuts, so please tell the chef."),
    ("assistant", "You can; they charge 2 euros a plate for serving it. The chef knows about the nuts now."),
)


@with_rows
def test_correction_is_in_every_text_of_a_summary(said: str, correction: str) -> None:
    talk = TALK * 2 if said.isascii() and "restaurant for" in said else ()
    summary = summary_of(("user", said), ("assistant", "Ok."), *talk, ("user", correction), ("assistant", "Ok."))
    for text in (summary.short_summary, summary.long_summary, condense(summary.rolling_summary, 40)):
        assert correction in text


def test_corrected_statement_leaves_if_its_correction_does_not_fit() -> None:
    rolling = (
        "User: The plumber comes on Monday. User: The cat is called Max.\n"
        "User: No, I mixed that up, the plumber comes on Thursday at nine, if nothing else breaks in the street before."
    )
    told = condense(rolling, 20)
    assert "Monday" not in told
    assert "Max" in told


def test_corrections_everywhere_leave_a_long_summary() -> None:
    rooms = [f"{color}{wood} room" for color in ("red", "grey", "pink", "blue", "white") for wood in WOODS]
    talk: list[Turn] = [("user", f"The {room} is cleaned on Monday by a crew of its own.") for room in rooms]
    talk[::8] = [
        ("user", f"No, sorry, Monday at {at % 12}:45 with all the crews that have a key to it.") for at in range(15)
    ]
    assert len(summary_of(*talk).long_summary) > MAX_SUMMARY_LENGTH // 2


ENGLISH = partial(stem_words, language="en")


def test_facts_outrank_small_talk() -> None:
    small_talk = informativeness("it was a nice day after all")
    for fact in ("it costs $20", "call Anna Berg tomorrow", "the code is AB-123", "we agreed on the blue one"):
        assert informativeness(fact) > small_talk


@pytest.mark.parametrize(
    "text", ["Hello!", "Thanks a lot", "Is there anything else?", "¿En qué puedo ayudarle?", "您好"]
)
def test_politeness_is_recognized(text: str) -> None:
    assert is_politeness(text, len(ENGLISH(text)))


@pytest.mark.parametrize("text", ["Hello, my order 4711 has not arrived in Rome yet", "Thanksgiving flights are full"])
def test_informative_greeting_outranks_politeness(text: str) -> None:
    assert not is_politeness(text, len(ENGLISH(text)))


@pytest.mark.parametrize("more", range(9))
def test_cut_message_has_no_half_numbers(more: int) -> None:
    text = " " * more + "order 4711 " * (MAX_MESSAGE_CHARACTERS // 10)
    assert set(" ".join(sentences_of(text)).replace(".", "").split()) == {"order", "4711"}


def title(*said: str) -> str:
    return summarize(an_episode_of(*(("user", text) for text in said)), "", 20).title


@with_rows
def test_title_is_its_sentences_noun_phrase(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


@with_rows
def test_long_opening_leads_to_its_topic(sentence: str, expected: str) -> None:
    assert title(sentence) == expected


def test_first_request_outranks_later_ones() -> None:
    assert title("I want a refund for my ticket.", "The train was late.") == "Refund for my ticket"


def test_greetings_make_no_title() -> None:
    assert title("Hello, how are you?", "My washing machine leaks water.") == "Washing machine leaks water"


def test_single_word_gives_its_sentence_as_title() -> None:
    assert title("Hi, why is my sourdough so dense?") == "Why is my sourdough so dense?"


def test_one_word_message_gives_no_title() -> None:
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
