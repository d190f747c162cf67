"""Long histories of invented people, made by rules: what they say of themselves, when, and what changes later.

A history is a user with a session every few days for most of a year; a session is an episode. In it two or three
subjects are talked about in phrases that other sessions have too, and now and then something is told that a question
asks for later:

- fact: told once;
- several: two things, told in different sessions; each is an answer;
- time: done again and again, each time otherwise; the question says when;
- plan: told weeks ahead; the question names the month that it is for, not the one in which it was told;
- update: told again, otherwise, months later; only the latest is the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from random import Random
from typing import NamedTuple

from afterword.schemas import EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.ids import episode_id
from afterword.streams.tokens import count_tokens

BEGAN = datetime(2024, 3, 4, 18, tzinfo=UTC)
"""First session; a Monday."""
HISTORIES, SESSIONS, DAYS_APART = 8, 48, (4, 5, 6, 7)
OTHER_SUBJECTS, TURNS, SECONDS_A_MESSAGE = 2, 2, 40
HABIT_MONTHS, PLANNED_AHEAD = 5, 8
SEED = 15
USER = "somebody"


class Fact(NamedTuple):
    """Something that is told once. `question` asks for it; `asked_with` is its part of a question for two things."""

    subject: str
    told: str
    question: str
    asked_with: str
    values: Sequence[str]


class Change(NamedTuple):
    """Something that is told again later, with another value."""

    subject: str
    first: str
    later: str
    question: str
    values: Sequence[str]


class Habit(NamedTuple):
    """Something that is done again and again."""

    subject: str
    told: str
    question: str
    """`{when}` stands for the time."""
    values: Sequence[str]


CHATTER: Mapping[str, Sequence[tuple[str, str]]] = {
    "work": (
        ("Work was a lot today, one meeting after the other.", "That sounds tiring. Did you get to your own tasks?"),
        ("My manager wants the numbers for the quarter again.", "You could send her the table from the last report."),
        ("Half of the team is on holiday.", "Then the planning meeting may be short for once."),
        ("I am thinking about asking for fewer hours.", "You could propose a trial of three months to the company."),
        ("The commute took forever this morning.", "Is there a train that you could take to the office?"),
    ),
    "home": (
        ("The flat is a mess and the neighbours are loud.", "Shall we make a list of what to tidy first?"),
        ("The landlord wrote about the heating.", "Keep the letter; it may matter for the bill."),
        ("I want to paint the living room.", "A light colour makes a small room look larger."),
        ("Rent goes up everywhere in this city.", "It may be worth comparing with other streets."),
        ("We need new curtains for the bedroom.", "Measure the window first, and add some width."),
    ),
    "cooking": (
        ("What can I cook with rice and whatever is left?", "Fried rice works with nearly everything."),
        ("My sauce was too salty again.", "Add some cream or a potato, and taste before salting."),
        ("I want to eat less meat.", "Lentils and beans are an easy way to begin."),
        ("The oven heats unevenly.", "Turn the tray after half of the time."),
        ("I have guests and little time to cook.", "Something from one pot keeps you out of the kitchen."),
    ),
    "sport": (
        ("I feel sore after training.", "A day of rest and a short walk will help."),
        ("I could not sleep before the run.", "That is normal; eat something light in the morning."),
        ("Should I stretch before or after training?", "After it, and only gently before."),
        ("My shoes are worn out.", "Most running shoes last about 800 kilometres."),
        ("The club is full of new people in the evening.", "Maybe the morning group is smaller."),
    ),
    "family": (
        ("My parents called for an hour.", "It is nice that they call. How are they?"),
        ("My sister is always late.", "Tell her half an hour earlier next time."),
        ("The family chat never stops.", "You can mute it for the working day."),
        ("I still need a present for my mother.", "What did she enjoy the last time you saw her?"),
        ("My brother wants to visit with the kids.", "A weekend with a park nearby would suit them."),
    ),
    "travel": (
        ("I look at flights every evening.", "Prices are often lower in the middle of the week."),
        ("The suitcase is too heavy again.", "Pack for five days, and wash on the way."),
        ("The train was late by two hours.", "You may get a part of the ticket back."),
        ("I like small hotels better.", "They often have the better breakfast, too."),
        ("I never know what to see first in a new town.", "Begin with a walk without any plan."),
    ),
    "health": (
        ("My back hurts from sitting.", "Stand up every half hour, even for a minute."),
        ("I slept badly this week.", "Try to leave the phone in another room."),
        ("The pharmacy was closed.", "There is usually one that is open at night."),
        ("I have to make an appointment with the doctor.", "Mornings are best to reach them by telephone."),
        ("I drink too much coffee.", "Have the last one before two in the afternoon."),
    ),
    "pets": (
        ("The dog barks at every bicycle.", "Reward him for each one that passes in silence."),
        ("The cat was on the table again.", "Give it a higher place that it may use."),
        ("The vet was expensive.", "An insurance may pay for a part of it."),
        ("Walks in the rain are no fun.", "A good coat for both of you helps."),
        ("There is hair all over the sofa.", "Brush twice a week, and cover the sofa."),
    ),
    "music": (
        ("I practised for half an hour.", "That is more than most people do on a working day."),
        ("The neighbours heard me play.", "Did they ask for another song?"),
        ("I cannot get the rhythm right.", "Slow down, and count aloud with a metronome."),
        ("There is a concert in town.", "Get the tickets before Friday, they sell quickly."),
        ("I would like to play with others.", "A small band for beginners might be the thing."),
    ),
    "books": (
        ("I read until midnight again.", "That is the sign of a good book."),
        ("The library sent a reminder.", "You can often renew books online."),
        ("Our book club argued all evening.", "Then at least everyone had read it."),
        ("I have too many books at home.", "You could give some away at the station's shelf."),
        ("I cannot finish what I begin to read.", "Nobody has to finish a book that bores them."),
    ),
}
FACTS = (
    Fact(
        "work",
        "By the way, at work they gave me the badge number {v}.",
        "What is the number of my badge at work?",
        "the number of my badge",
        ("4471", "9038", "2216", "7754", "3390", "6182", "5027", "8845"),
    ),
    Fact(
        "work",
        "My new manager is called {v}, she comes from the office in Leeds.",
        "What is my manager's name?",
        "my manager's name",
        (
            "Ottilie Brandt",
            "Noor Haddad",
            "Greta Lind",
            "Maud Perrin",
            "Ines Roca",
            "Vera Sato",
            "Wilma Oss",
            "Tessa Quinn",
        ),
    ),
    Fact(
        "home",
        "The landlord gave me the code {v} for the bicycle cellar.",
        "Which code opens the bicycle cellar?",
        "the code of the bicycle cellar",
        ("7193", "2048", "6655", "1882", "9407", "3571", "8120", "4936"),
    ),
    Fact(
        "home",
        "We painted the living room in {v} after all.",
        "Which colour did we take for the living room?",
        "the colour of the living room",
        ("sage green", "pale ochre", "dove grey", "salmon pink", "ink blue", "mustard", "lilac", "terracotta"),
    ),
    Fact(
        "cooking",
        "I found out that I cannot eat {v}, it gives me a rash.",
        "Which food gives me a rash?",
        "the food that gives me a rash",
        ("celery", "kiwi", "hazelnuts", "shrimps", "lupin", "sesame", "mango", "walnuts"),
    ),
    Fact(
        "cooking",
        "The secret of my grandmother's soup was {v}.",
        "What did grandmother put into her soup?",
        "the secret of grandmother's soup",
        (
            "nutmeg",
            "a spoon of vinegar",
            "dried plums",
            "smoked paprika",
            "star anise",
            "lovage",
            "orange peel",
            "caraway",
        ),
    ),
    Fact(
        "sport",
        "I did the half marathon in {v}, I am so happy.",
        "What was my time in the half marathon?",
        "my time in the half marathon",
        ("1:52:10", "2:04:33", "1:47:58", "1:59:02", "2:11:45", "1:44:21", "1:56:37", "2:08:09"),
    ),
    Fact(
        "sport",
        "Doctor Weir says the pain in my knee is {v}.",
        "What is wrong with my knee?",
        "what is wrong with my knee",
        (
            "a torn meniscus",
            "a runner's knee",
            "a small cyst",
            "bursitis",
            "an old fracture",
            "tendinitis",
            "a strained ligament",
            "early arthritis",
        ),
    ),
    Fact(
        "family",
        "My sister had her baby, it is a girl and she is called {v}!",
        "What is my sister's baby called?",
        "the name of my sister's baby",
        ("Ronja", "Elodie", "Mathilda", "Yuki", "Soraya", "Philippa", "Anouk", "Ida"),
    ),
    Fact(
        "family",
        "My father will be seventy on {v}, we want to surprise him.",
        "When is my father's birthday?",
        "the day of my father's birthday",
        (
            "the ninth of August",
            "the third of October",
            "the first of November",
            "the twelfth of June",
            "the fifth of July",
            "the last of April",
            "the eighth of December",
            "the second of September",
        ),
    ),
    Fact(
        "travel",
        "I booked the hotel {v} for our anniversary.",
        "Which hotel did I book for the anniversary?",
        "the hotel for the anniversary",
        ("Aurora", "Zum Anker", "Bellavista", "Miramar", "Old Mill", "Kestrel", "Lanterna", "Saltholm"),
    ),
    Fact(
        "travel",
        "My passport number is {v}, I always forget it.",
        "What is my passport number?",
        "my passport number",
        ("X4417720", "P9031185", "L2266093", "K7750418", "C3390127", "T6182954", "N5027336", "H8845201"),
    ),
    Fact(
        "health",
        "The doctor prescribed {v} against the migraine.",
        "What do I take against migraine?",
        "what I take against migraine",
        (
            "sumatriptan",
            "magnesium",
            "propranolol",
            "rizatriptan",
            "topiramate",
            "naproxen",
            "feverfew",
            "zolmitriptan",
        ),
    ),
    Fact(
        "health",
        "My blood group is {v}, they told me when I gave blood.",
        "Which blood group do I have?",
        "my blood group",
        (
            "A negative",
            "B positive",
            "O negative",
            "AB positive",
            "A positive",
            "B negative",
            "O positive",
            "AB negative",
        ),
    ),
    Fact(
        "pets",
        "We adopted a puppy and named him {v}.",
        "What is the puppy called that we adopted?",
        "the name of our puppy",
        ("Biscuit", "Major", "Waffle", "Pepper", "Moss", "Bramble", "Otto", "Figaro"),
    ),
    Fact(
        "pets",
        "The vet found out that the cat is allergic to {v}.",
        "What must the cat not get?",
        "what the cat is allergic to",
        ("chicken", "beef", "grain", "tuna", "dust mites", "eggs", "milk", "soy"),
    ),
    Fact(
        "music",
        "I bought a second-hand {v} for three hundred.",
        "Which instrument did I buy second-hand?",
        "the instrument that I bought",
        ("cello", "accordion", "banjo", "clarinet", "saxophone", "mandolin", "viola", "trombone"),
    ),
    Fact(
        "music",
        "At my first performance I will play {v}.",
        "What am I going to play at my first performance?",
        "what I play at my first performance",
        (
            "a waltz by Chopin",
            "a suite by Bach",
            "an étude by Sor",
            "a tango by Piazzolla",
            "a sonata by Clementi",
            "a song by Schubert",
            "a rag by Joplin",
            "a prelude by Satie",
        ),
    ),
    Fact(
        "books",
        "The book that changed my mind about everything is {v}.",
        "Which book changed my mind?",
        "the book that changed my mind",
        ("Middlemarch", "Walden", "Stoner", "Siddhartha", "Beloved", "Austerlitz", "Solaris", "Momo"),
    ),
    Fact(
        "books",
        "I lent my signed copy to {v}, I must not forget.",
        "Who has my signed copy?",
        "who has my signed copy",
        ("Leonard", "Marisol", "Benedikt", "Aisha", "Tobias", "Clemence", "Ruben", "Yara"),
    ),
)
CHANGES = (
    Change(
        "home",
        "I have moved to {v} now, the boxes are everywhere.",
        "We have moved once more, from {old} to {v}.",
        "Which city do I live in?",
        ("Berlin", "Porto", "Ghent", "Turin", "Malmö", "Graz", "Leeds", "Nantes"),
    ),
    Change(
        "work",
        "I signed my contract with {v} today!",
        "I left {old}, and signed a contract with {v}.",
        "Which company do I have a contract with?",
        (
            "Halden Optics",
            "Brightwater",
            "Norrland Rail",
            "Quillworks",
            "Tideline",
            "Corvus Labs",
            "Meridian Foods",
            "Ashgrove",
        ),
    ),
    Change(
        "sport",
        "I train on {v} evenings now.",
        "Training is on {v} evenings from now on, no longer on {old}.",
        "On which evenings do I train?",
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
    ),
    Change(
        "health",
        "My dentist is {v}, very gentle.",
        "I have another dentist, {v} instead of {old}.",
        "Who is my dentist?",
        ("Dr. Amsel", "Dr. Boyle", "Dr. Castan", "Dr. Dvorak", "Dr. Egger", "Dr. Faure"),
    ),
    Change(
        "music",
        "My teacher is {v}, once a week.",
        "{old} stopped teaching; my teacher is {v} now.",
        "Who teaches me music?",
        ("Mrs. Albrecht", "Mr. Benoit", "Mrs. Cho", "Mr. Dragan", "Mrs. Eklund"),
    ),
    Change(
        "travel",
        "For the summer I want to go to {v}.",
        "Not {old} any more: this summer we go to {v}.",
        "Where do I want to spend the summer?",
        ("Crete", "Skye", "Corsica", "Bornholm", "Madeira", "Gotland"),
    ),
    Change(
        "pets",
        "The cat eats {v} and nothing else.",
        "The cat refuses {old} now, it has to be {v}.",
        "Which food does the cat eat?",
        ("Purrfect", "Katzengold", "Whiskerine", "Felidor", "Minette"),
    ),
    Change(
        "books",
        "Our book club meets at the {v}.",
        "The book club meets at the {v} now, the {old} has closed.",
        "Where does the book club meet?",
        ("Blue Door", "Café Lumen", "Old Library", "Three Foxes", "Harbour Bar"),
    ),
)
HABITS = (
    Habit("cooking", "I cooked {v} for my guests yesterday.", "What did I cook for my guests {when}?",
          ("paella", "ramen", "moussaka", "goulash", "pierogi", "lasagne", "bibimbap", "tagine", "risotto", "borscht")),
    Habit("books", "We read {v} for the book club this time.", "Which book did we read for the club {when}?",
          ("Emma", "Dracula", "Persuasion", "Hamlet", "Candide", "Ulysses", "Kim", "Nana", "Faust", "Orlando")),
    Habit("sport", "I ran {v} kilometres with the group.", "How many kilometres did I run with the group {when}?",
          ("seven", "eleven", "nine", "thirteen", "six", "fifteen", "eight", "twelve", "ten", "fourteen")),
    Habit("travel", "We spent a few days in {v}, it was lovely.", "Where did we spend a few days {when}?",
          ("Bruges", "Lucca", "Toledo", "Tallinn", "Bath", "Colmar", "Évora", "Ghent", "Trier", "Delft")),
    Habit("music", "We rehearsed {v} with the band.", "Which song did the band rehearse {when}?",
          ("Yesterday", "Jolene", "Caravan", "Hallelujah", "Misty", "Autumn Leaves", "Imagine", "Summertime")),
    Habit("family", "My brother came by and brought {v}.", "What did my brother bring {when}?",
          ("a kite", "old photographs", "a cactus", "pears", "a puzzle", "his guitar", "a lamp", "cheese")),
)  # fmt: skip
PLANS = (
    Fact("family", "The wedding of my cousin is in {month}, in {v}.", "Where is my cousin's wedding in {month}?",
         "", ("Salzburg", "Verona", "Cork", "Uppsala", "Lisbon")),
    Fact("work", "In {month} I speak at a conference about {v}.", "What do I speak about at the conference in {month}?",
         "", ("glass fibres", "night trains", "food waste", "lenses", "tidal power")),
    Fact("health", "My knee is operated on in {month}, by {v}.", "Who operates on my knee in {month}?",
         "", ("Professor Adler", "Doctor Moss", "Doctor Unger", "Professor Klee", "Doctor Farrow")),
)  # fmt: skip
ANSWERS = ("Thank you for telling me.", "Good to know.", "Noted.", "That is news!", "I will keep that in mind.")


class Asked(NamedTuple):
    """A question, and what answers it."""

    category: str
    text: str
    answers: frozenset[str]
    """Ids of the episodes."""


class History(NamedTuple):
    user_id: str
    episodes: list[EpisodeClosed]
    questions: list[Asked]
    asked_at: datetime


def histories_by_rules(seed: int = SEED) -> Iterator[History]:
    """Make the same histories with every call of a seed: with another one, other things are told at other times."""
    for number in range(HISTORIES):
        yield _History(f"person-{number}", Random(seed + number)).made()


class _History:
    def __init__(self, user_id: str, random: Random) -> None:
        self._user, self._random = user_id, random
        days = [0, *accumulate(random.choice(DAYS_APART) for _ in range(SESSIONS - 1))]
        self._starts = [BEGAN + timedelta(days=day, minutes=random.randrange(180)) for day in days]
        self._asked_at = self._starts[-1] + timedelta(days=3)
        self._told: list[list[tuple[str, str]]] = [[] for _ in range(SESSIONS)]
        """Subject and text of what is told in each session."""
        self._questions: list[Asked] = []

    def made(self) -> History:
        self._tell_facts()
        self._tell_changes()
        for habit in HABITS:
            self._tell_habit(habit)
        for plan in PLANS:
            self._tell_plan(plan)
        episodes = [self._session(number) for number in range(SESSIONS)]
        return History(self._user, episodes, self._questions, self._asked_at)

    def _tell_facts(self) -> None:
        facts = self._random.sample(FACTS, len(FACTS))
        places = [self._tell(self._random.randrange(SESSIONS), f.subject, f.told, self._one(f)) for f in facts]
        for fact, place in zip(facts, places, strict=True):
            self._ask("fact", fact.question, place)
        for at in range(0, len(facts), 2):
            text = f"Tell me {facts[at].asked_with} and {facts[at + 1].asked_with}."
            self._ask("several", text, *places[at : at + 2])

    def _tell_changes(self) -> None:
        for change in CHANGES:
            times = sorted(self._random.sample(range(SESSIONS), self._random.choice((2, 3))))
            old, place = "", ""
            for at, value in zip(times, self._random.sample(change.values, len(times)), strict=True):
                place = self._tell(at, change.subject, change.later if old else change.first, value, old=old)
                old = value
            self._ask("update", change.question, place)

    def _tell_habit(self, habit: Habit) -> None:
        """Once in each of some months, and last week, where that is in none of these months."""
        of_month = {f"{start:%B %Y}": at for at, start in enumerate(self._starts)}
        last = max(at for at, start in enumerate(self._starts) if _week(start) == _week(self._asked_at) - 1)
        times = {f"in {month}": of_month[month] for month in self._random.sample(sorted(of_month), HABIT_MONTHS)}
        if f"in {self._starts[last]:%B %Y}" not in times:
            times["last week"] = last
        for (when, at), value in zip(times.items(), self._random.sample(habit.values, len(times)), strict=True):
            self._ask("time", habit.question.format(when=when), self._tell(at, habit.subject, habit.told, value))

    def _tell_plan(self, plan: Fact) -> None:
        """Weeks ahead: a session of the month itself talks of something else."""
        at = self._random.randrange(SESSIONS - PLANNED_AHEAD)
        month = f"{self._starts[at + PLANNED_AHEAD]:%B %Y}"
        place = self._tell(at, plan.subject, plan.told, self._one(plan), month=month)
        self._ask("plan", plan.question.format(month=month), place)

    def _one(self, fact: Fact) -> str:
        return self._random.choice(fact.values)

    def _tell(self, at: int, subject: str, template: str, value: str, **slots: str) -> str:
        """Tell something in a session; returns the id of its episode."""
        self._told[at].append((subject, template.format(v=value, **slots)))
        return episode_id(self._conversation(at), 1)

    def _ask(self, category: str, text: str, *answers: str) -> None:
        self._questions.append(Asked(category, text, frozenset(answers)))

    def _conversation(self, at: int) -> str:
        return f"{self._user}-{at}"

    def _session(self, at: int) -> EpisodeClosed:
        said = list(self._said(at))
        times = [self._starts[at] + timedelta(seconds=SECONDS_A_MESSAGE * n) for n in range(len(said))]
        messages = [
            EpisodeMessage(
                id=str(n), role="assistant" if n % 2 else "user", content=text, sent_at=times[n], user_id=self._user
            )
            for n, text in enumerate(said)
        ]
        return closed_episode(self._conversation(at), 1, messages, self._user)

    def _said(self, at: int) -> Iterator[str]:
        """The texts of a session, question and answer in turn."""
        told = self._told[at]
        others = [subject for subject in CHATTER if subject not in {subject for subject, _ in told}]
        subjects = [*dict.fromkeys(subject for subject, _ in told), *self._random.sample(others, OTHER_SUBJECTS)]
        self._random.shuffle(subjects)
        for subject in subjects:
            turns = self._random.sample(CHATTER[subject], TURNS)
            for text in (text for of, text in told if of == subject):
                turns.insert(self._random.randint(0, len(turns)), (text, self._random.choice(ANSWERS)))
            yield from chain.from_iterable(turns)


def _week(moment: datetime) -> int:
    """Number of the week, counted from Monday to Sunday."""
    return (moment.date() - BEGAN.date()).days // 7


def closed_episode(conversation: str, ordinal: int, core: Sequence[EpisodeMessage], user: str = USER) -> EpisodeClosed:
    """An episode of these messages."""
    return EpisodeClosed(
        episode_id=episode_id(conversation, ordinal),
        revision=1,
        conversation_id=conversation,
        user_id=user,
        ordinal=ordinal,
        close_reason="trigger",
        fingerprint=fingerprint(core),
        started_at=core[0].sent_at,
        ended_at=core[-1].sent_at,
        closed_at=core[-1].sent_at,
        messages=tuple(core),
        message_count=len(core),
        turn_count=len(core),
        token_count=sum(count_tokens(message.content) for message in core),
        metrics=EpisodeMetrics(),
        source=Source(topic="messages", partition=0, first_offset=0, last_offset=0),
    )
