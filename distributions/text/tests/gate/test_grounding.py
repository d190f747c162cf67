"""The share of a summary that its source supports, however either is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.gate import Evidence, Grounding, ground
from afterword_text.gate.claims import months
from afterword_text.gate.quantities import CURRENCIES, MAGNITUDES
from afterword_text.language import detect


def grounded(summary: str, source: str, language: str = "en") -> Grounding:
    return ground([summary], Evidence(source, language), language)


@pytest.mark.parametrize(
    ("summary", "source"),
    [
        ("It costs $1,250.50.", "that's 1250.5 dollars"),
        ("It costs 1250,50 €.", "1.250,50 Euro"),
        ("They have 2,000 hats.", "i own two thousand hats"),
        ("They own twenty-three dogs.", "we have 23 dogs"),
        ("The budget is $5k.", "a budget of 5,000 dollars"),
        ("The budget is 2 million euros.", "2,000,000 EUR"),
        ("He finished 3rd.", "he came in third"),
        ("It took 2½ hours.", "it took 2.5 hours"),
        ("It costs $0.75.", "it's $.75"),
        ("It costs ₹150,000.", "₹1,50,000"),
        ("The room has 20 m².", "20 square metres"),
        ("They run version 2.0.1.", "v2.0.1"),
        ("Full-width １２３ was dialled.", "he dialled 123"),
        ("The appointment is on 12 March.", "see you on 2024-03-12"),
        ("The appointment is on 2024-03-12.", "March 12th, 2024 works"),
        ("The appointment is on March 12.", "in March, best on the 12th"),
        ("It is due on 30.6.2025.", "due June 30, 2025"),
        ("The meeting is at 17:00.", "let's meet at 5 pm"),
        ("The meeting is at 5:30 pm.", "17:30 then"),
        ("The order is AB1234.", "order ab-1234 please"),
        ("Order AB-1234 is late.", "my order is AB 1234"),
        ("Call 1-800-772-1213.", "our number is 800 772 1213"),
        ("Order AB12 WITH CODE NEXT.", "ab-12, code with next order"),
        ("See example.org/help.", "look at https://www.example.org/help."),
        ("Write to Jo@Example.org.", "jo@example.org"),
        ("Zoë's cat is called Émile.", "zoe has a cat, emile"),
        ("Łukasz met Sørensen.", "i met lukasz and sorensen"),
        ("Marias were told.", "maria"),
        ("It is on Monday.", "mon at noon"),
    ],
)
def test_different_spelling_of_the_same_thing_is_supported(summary: str, source: str) -> None:
    assert grounded(summary, source) == Grounding(1.0, (), wrong_figure=False)


@pytest.mark.parametrize(
    ("language", "summary", "source"),
    [
        ("da", "Mødet er kl. 15:30.", "vi ses kl. 15.30"),
        ("da", "Mødet er kl. 15.30.", "vi ses 15:30"),
        ("da", "Mødet er kl. 15.30.", "vi ses 15.30"),
        ("it", "La riunione va dalle 15:30 alle 17:00.", "dalle 15.30 alle 17.00"),
    ],
)
def test_point_in_a_time_is_read_after_time_words(language: str, summary: str, source: str) -> None:
    assert not grounded(summary, source, language).wrong_figure
    assert grounded(summary.replace("15", "16"), source, language).wrong_figure


@pytest.mark.parametrize(
    ("language", "source", "right", "wrong"),
    [
        # magnitude
        ("en", "It costs $2 million.", "It costs $2,000,000.", "It costs $2 billion."),
        ("en", "two and a half million dollars", "$2.5 million", "$2.5 billion"),
        ("en", "We have 250 thousand users.", "They have 250,000 users.", "They have 250 million users."),
        ("en", "Revenue was €37m.", "Revenue was 37 million euros.", "Revenue was €37bn."),
        ("en", "She earns 65k a year.", "She earns 65,000 a year.", "She earns 65 a year."),
        ("de", "Das kostet 3 Mio. Euro.", "Das kostet 3 Millionen Euro.", "Das kostet 3 Mrd. Euro."),
        ("de", "fünf Billionen Euro", "5.000.000.000.000 Euro", "5.000.000.000 Euro"),
        ("en", "5 lakh rupees", "500,000 rupees", "5 crore rupees"),
        ("en", "2 crore", "20 million", "2 million"),
        ("ja", "100万円", "1,000,000 yen", "100,000 yen"),
        ("zh", "三百人，三万五千元", "300 people, 35,000 yuan", "3,000 people"),
        ("zh", "我们有二十三个人。", "有二十三个人。", "有三十三个人。"),
        ("ko", "가격은 3만 원입니다.", "30,000원", "가격은 3억 원입니다."),
        ("und", "€2.3bn", "2.3 billion euros", "2.3 million euros"),
        ("en", "We need 2 dozen roses.", "They need 24 roses.", "They need 2 roses."),
        ("en", "The rent is 1,250 euros.", "1.250 euros", "1.250.000 euros"),
        ("en", "It was 3 lakh 20 thousand.", "It was 320,000.", "It was 320 million."),
        ("ja", "1億2千万円です。", "120,000,000円", "1億3千万円"),
        ("zh", "二〇二四年", "2024年", "2023年"),
        ("ru", "Цена 2 миллиона рублей.", "Цена 2 000 000 рублей.", "Цена 2 миллиарда рублей."),
        ("en", "The rate is 0.75.", "The rate is 75%.", "The rate is 7.5%."),
        # sign
        ("en", "My balance is -300 euros.", "The balance is −300 euros.", "The balance is 300 euros."),
        ("en", "It was minus five degrees.", "It was -5 °C.", "It was 5 degrees."),
        ("en", "I am overdrawn by 300 euros.", "The balance is -300 euros.", "The balance is -200 euros."),
        ("en", "pages 10-12", "pages 10 to 12", "pages 10 to 13"),
        # unit
        ("en", "Dose: 50 mcg daily", "The dose is 50 µg, or 50 micrograms.", "The dose is 50 mg."),
        ("en", "take 0.5 g", "take 500 mg", "take 0.5 mg"),
        ("en", "at 50 kHz", "at 0.05 MHz", "at 50 MHz"),
        ("en", "It is 3 km away.", "It is 3 kilometres away.", "It is 3 m away."),
        ("en", "It took 1.5 hours.", "It took 90 minutes.", "It took 1.5 days."),
        ("de", "In drei Wochen", "In 21 Tagen", "In drei Monaten"),
        ("en", "It was 20 °C.", "It was 20 degrees.", "It was 20 °F."),
        ("en", "they were 20 of us", "There were 20 kg.", "There were 21 kg."),
        ("en", "it grew by 5 per cent", "It grew by 5 %.", "It grew by 6 %."),
        ("en", "It costs 90 cents.", "It costs 90 cents.", "It costs 90 dollars."),
        ("en", "It costs 3 dollars and 50 cents.", "It costs $3.50.", "It costs $3.60."),
        ("en", "It costs $0.90.", "It costs 90 cents.", "It costs 80 cents."),
        ("en", "It costs 50 cents.", "It costs $0.50.", "It costs $50."),
        ("en", "It has 5000 mAh.", "It has 5 Ah.", "It has 5000 Ah."),
        ("en", "I get 300 Mbit/s.", "They get 0.3 Gbit/s.", "They get 300 kbit/s."),
        ("en", "It lasted two decades.", "It lasted 20 years.", "It lasted 30 years."),
        ("de", "Es wiegt ein halbes Kilo.", "Es wiegt 500 g.", "Es wiegt 600 g."),
        ("de", "Ich zahle 200 € im Monat.", "200 € pro Monat", "200 € im Jahr"),
        ("it", "Pago 200 € al mese.", "200 € al mese", "200 € all'anno"),
        ("ar", "السعر ١٢٬٥٠٠ درهم و٣٫٥ كيلو", "12,500 درهم 3.5", "12,600 درهم"),
        ("en", "The flat has 65 m².", "It has 65 m².", "It has 65 m."),
        ("en", "The oven is at 180 C.", "It is at 180 °C.", "It is at 180 F."),
        ("en", "It has 80 square meters.", "It has 80 m².", "It has 80 square kilometers."),
        ("de", "Das Fass hat 3 Kubikmeter.", "Es hat 3 m³.", "Es hat 3 Kubikzentimeter."),
        ("fr", "Elle a 80 mètres carrés.", "Elle a 80 m².", "Elle a 80 m."),
        ("fr", "Il en faut 12 mètres cubes.", "Il en faut 12 m³.", "Il en faut 12 mètres."),
        ("en", "Cut it into 2 cm cubes.", "Cubes of 2 cm.", "It has 2 cubic centimeters."),
        ("en", "It took 1 h 30 min.", "It took 90 minutes.", "It took 31 hours."),
        ("en", "¾ of an hour", "45 minutes", "75 minutes"),
        ("it", "Ci vuole un'ora e mezza.", "Ci vogliono 90 minuti.", "Ci vogliono 60 minuti."),
        # half of the day
        ("en", "Lunch is at noon.", "Lunch is at 12:00.", "Lunch is at 0:00."),
        ("fr", "On se voit à midi et demi.", "Rendez-vous à 12h30.", "Rendez-vous à 13h30."),
        ("fr", "Il arrive à midi moins le quart.", "à 11h45", "à 14h45"),
        ("pt", "Almoçamos ao meio-dia e meia.", "às 12:30", "às 13:30"),
        ("ru", "Встреча в 7 утра.", "Встреча в 07:00.", "Встреча в 7 вечера."),
        ("en", "The train leaves at 6 am.", "The train leaves at 06:00.", "The train leaves at 6 pm."),
        ("en", "at seven in the evening", "at 7 pm", "at 8 pm"),
        ("de", "um 7 Uhr abends", "um 19 Uhr", "um 7 Uhr morgens"),
        ("de", "um 2 Uhr nachts", "um 2 Uhr", "um 14 Uhr"),
        ("en", "at 11 at night", "at 23:00", "at 11 am"),
        ("en", "at 9 in the morning", "at 9", "at 9 pm"),
        ("en", "call me at 05:45", "at 5:45", "at 17:45"),
        ("fr", "à 8 h du soir", "à 20h00", "à 8 h du matin"),
        ("es", "a las 7 de la tarde", "a las 19:00", "a las 7 de la mañana"),
        ("en", "a table at seven", "at 7 pm", "at 8 pm"),
        ("en", "Flight at 0715.", "Flight at 7:15.", "Flight at 7:45."),
        ("en", "we meet at 17:00", "they meet at 5", "they meet at 6.30"),
        ("de", "um fünfzehn Uhr dreißig", "um 15:30 Uhr", "um 15:40 Uhr"),
        ("fr", "à quinze heures trente", "à 15h30", "à 15h40"),
        ("en", "12:30 am", "at 0.30", "at 1.30"),
        # the same number in other words
        ("en", "½ cup of flour and 1 1/2 of sugar", "0.5 cups and 1.5 of it", "2.5 cups of it"),
        ("en", "I was born in '88.", "Born in 1988.", "Born in 1998."),
        ("en", "in the 90s", "in the 1990s", "in the 1980s"),
        ("en", "nineteen eighty-four", "1984", "1994"),
        ("en", "back in the mid-'90s", "in the mid-1990s", "in the mid-1980s"),
        ("en", "Chapter MCMXCIV of XIV", "chapter 1994 of 14", "chapter 1996 of 14"),
        ("en", "nine out of ten agree", "90% agree", "80% agree"),
        ("en", "a couple hundred dollars", "200 dollars", "300 dollars"),
        ("en", "a quarter million", "250,000", "450,000"),
        ("es", "Cuesta 80 pesos.", "80 pesos", "80 dólares"),
        ("en", "a million and a half", "1.5 million", "2.5 million"),
        ("de", "zweieinhalb Millionen Euro", "2,5 Millionen Euro", "3,5 Millionen Euro"),
        ("de", "zwölf Euro fünfzig", "12,50 €", "12,60 €"),
        ("de", "Es kostet 12,50 €.", "12 Euro 50", "12 Euro 60"),
        ("de", "um halb acht", "um 7:30 Uhr", "um 9:30 Uhr"),
        ("fr", "trois millions et demi", "3,5 millions", "4,5 millions"),
        ("en", "It draws 500 mA.", "It draws 0.5 A.", "It draws 500 A."),
        ("en", "He drank 3 pints.", "He drank three pints.", "He drank 3 litres."),
        ("en", "Dinner is at 8 tonight.", "Dinner is at 8 pm.", "Dinner is at 8 am."),
        ("da", "Toget går klokken 7 om morgenen.", "Toget går klokken 7.", "Toget går klokken 19."),
        ("ko", "삼백오십 명", "350명", "400명"),
        ("ko", "저는 스물다섯 살이고 열두 시에 가요.", "25살, 12시", "26살"),
        ("ro", "Costă 5 milioane de lei.", "5.000.000 de lei", "5 mii de lei"),
        ("en", "half of us, and one third of them", "50% and 33%", "60%"),
        ("en", "She came 2nd.", "She came second.", "She came 3rd."),
        ("ru", "Мне сто двадцать пять тысяч рублей.", "125 000 рублей", "120 000 рублей"),
        ("ru", "Это заняло полтора часа.", "1,5 часа", "2,5 часа"),
        ("ru", "Я выпил полтора литра и прошёл полторы мили.", "1,5 литра", "2,5 литра"),
        ("tr", "Beş Mayıs'ta buluşuyoruz.", "5 Mayıs'ta", "6 Mayıs'ta"),
        ("uk", "Нас дев’яносто п’ять осіб.", "95 осіб", "90 осіб"),
        ("pl", "Było trzysta dwadzieścia osób.", "320 osób", "300 osób"),
        ("sv", "Vi är tjugofem personer.", "Det är 25 personer.", "Det är 26 personer."),
        ("sv", "Det kostar trehundratjugo tusen kronor.", "320 000 kronor", "300 000 kronor"),
        ("tr", "Üç yüz yirmi beş kişi geldi.", "325 kişi geldi.", "320 kişi geldi."),
        ("ru", "Я заплатил двадцатью пятью рублями.", "25 рублей", "20 рублей"),
        ("vi", "Có hai mươi lăm cái ghế.", "25 cái ghế", "20 cái ghế"),
        ("hi", "हमें पच्चीस कुर्सियाँ चाहिए।", "25 कुर्सियाँ", "20 कुर्सियाँ"),
        ("en", "It has 1e6 rows and weighs 2.5e-3 g.", "1,000,000 rows, 2.5 mg", "100,000 rows"),
        ("en", "It has a million rows.", "It has 1e6 rows.", "It has 1e5 rows."),
        ("fr", "deux et demi", "2,5", "25"),
        ("en", "in half an hour", "in 30 minutes", "in 45 minutes"),
        ("en", "half a million people", "500,000 people", "a million people"),
        ("en", "it lasts 90 minutes", "it lasts 1 hour and 30 minutes", "it lasts 1 hour and 40 minutes"),
        ("en", "I earn $15 an hour", "$15 per hour", "$15 a day"),
        ("en", "it took an hour and fifty minutes", "1 hour and 50 minutes", "1 hour and 40 minutes"),
        ("en", "for a year and a half", "for 18 months", "for 12 months"),
        ("de", "Wir fahren vom 3.5. bis 10.5. weg.", "3. bis 10. Mai", "3. bis 10. Juni"),
        ("de", "Der Termin ist am 12. Juni.", "am 12.06.", "am 12.07."),
        ("zh", "会议在下午3点", "下午3:00", "上午3点"),
        ("de", "in einer halben oder eine halbe Stunde", "in 30 Minuten", "in 3 Minuten"),
        ("en", "take 0.5 mg", "0.5 mg of it", "5 mg of it"),
        ("en", "IBAN DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "DE89370400440532013001"),
        # a time in words supports any minute of the hours before and after the hour that it names
        ("en", "let's meet at half past five", "at 5:30", "at 7:30"),
        ("de", "um fünf vor halb neun", "um 8:25 Uhr", "um 6:25 Uhr"),
        ("es", "a las cinco y media", "a las 17:30", "a las 19:30"),
        ("en", "ten to nine", "at 8:50", "at 12:50"),
    ],
)
def test_same_quantity_is_supported_and_another_is_not(language: str, source: str, right: str, wrong: str) -> None:
    assert not grounded(right, source, language).wrong_figure
    assert grounded(wrong, source, language).wrong_figure


@pytest.mark.parametrize(
    ("summary", "source", "token"),
    [
        ("It costs $1,350.50.", "that's 1250.5 dollars", "$1,350.50"),
        ("It costs €50.", "it costs $50", "€50"),
        ("They own twenty-four dogs.", "we have 23 dogs", "24 "),
        ("They own five dogs.", "we have two dogs", "5 "),
        ("It took 21 hours.", "it took 2½ hours", "21 hours"),
        ("It costs $.85.", "it's $0.75", "$0.85"),
        ("It costs ₹1,50,500.", "₹1,50,000", "₹1,50,500"),
        ("They run version 2.0.2.", "version 2.0.1", "2.0.2"),
        ("The appointment is on 13 March.", "see you on 2024-03-12", "13 March"),
        ("The meeting is at 18:00.", "let's meet at 5 pm", "18:00"),
        ("The order is AB1235.", "order ab-1234 please", "AB1235"),
        ("Call 1-800-772-1214.", "our number is 800 772 1213", "1-800-772-1214"),
        ("See evil-example.org.", "look at https://www.example.org/help.", "evil-example.org"),
        ("Write to jo@example.com.", "jo@example.org", "jo@example.com"),
    ],
)
def test_other_figure_or_address_is_unsupported(summary: str, source: str, token: str) -> None:
    found = grounded(summary, source)
    assert (found.share, found.wrong_figure) == (0.0, True)
    assert [text.strip() for text in found.unsupported] == [token.strip()]


@pytest.mark.parametrize(
    ("summary", "names"),
    [
        ("The user met Priya Okafor in Zurich.", ("Priya", "Okafor", "Zurich")),
        ("Okafor called. Payment was confirmed.", ("Okafor",)),
        ("The user asked the Assistant. However, Customers were told.", ()),
        ("Planning A Long Trip With Friends", ()),
        ("They moved. McDonald paid.", ("McDonald",)),
    ],
)
def test_names_differ_from_capitalized_ordinary_words(summary: str, names: tuple[str, ...]) -> None:
    assert grounded(summary, "nothing of that was said").unsupported == names


@pytest.mark.parametrize(
    ("language", "words", "rest"),
    [
        (
            "en",
            "Additionally Furthermore Moreover Meanwhile Nevertheless Consequently Overall Subsequently Interestingly "
            "Alternatively Conversely Fortunately Henceforth Unfortunately Throughout Ultimately Importantly Notably",
            "they were told about it.",
        ),
        ("fr", "Ensuite Cependant Toutefois Finalement Néanmoins Désormais", "ils en ont parlé."),
        ("es", "Además Asimismo Posteriormente Finalmente También", "hablaron de eso."),
        ("it", "Inoltre Infine Tuttavia Successivamente", "ne hanno parlato."),
        ("pt", "Além Ademais Finalmente Posteriormente", "falaram disso."),
        ("nl", "Daarnaast Bovendien Tenslotte Vervolgens", "spraken zij erover."),
        ("da", "Desuden Derudover Endelig Derefter Efterfølgende", "talte de om det."),
    ],
)
def test_ordinary_word_at_a_sentences_start_is_no_name(language: str, words: str, rest: str) -> None:
    for word in words.split():
        assert grounded(f"It was so. {word}, {rest}", "nothing of that", language).unsupported == (), word


@pytest.mark.parametrize("name", ["Okafor", "Emily", "Kelly", "Beverly"])
def test_name_at_a_sentence_start_is_a_name(name: str) -> None:
    assert grounded(f"It was so. {name} was told.", "nothing of that").unsupported == (name,)


def test_german_nouns_need_a_mark_to_be_names() -> None:
    summary = "Die Rechnung wurde bezahlt. Frau Lindqvist und Thomas Brandauer waren dabei."
    assert grounded(summary, "wir haben das bezahlt", "de").unsupported == ("Lindqvist", "Thomas", "Brandauer")


def test_scripts_without_capitals_are_checked_by_figures() -> None:
    source = "8月15日下午3点有MU5405，改签费每人260元。"
    assert grounded("航班MU5405，8月15日，260元。", source, "zh").share == 1.0
    assert grounded("航班MU5406，8月15日，260元。", source, "zh").unsupported == ("MU5406",)


@pytest.mark.parametrize("date", ["23 aprıl", "maı 23", "APRİL 23", "23 mıo", "23 MİO €"])
def test_turkish_i_makes_no_name_a_month_or_unit(date: str) -> None:
    assert grounded(f"It is due {date}.", f"due {date}") == Grounding(1.0, (), wrong_figure=False)
    assert grounded(f"It is due {date}.", "due 7 June").wrong_figure


LOOKALIKES = str.maketrans({"i": "ı", "s": "ſ", "k": "\u212a"})


@given(
    st.lists(
        st.sampled_from(
            sorted(
                f"{number} {name}"
                for name in (*months("en"), *MAGNITUDES, *CURRENCIES)
                if not name.isdigit()
                for number in ("7", "")
            )
        )
        .flatmap(lambda text: st.sampled_from([text, text.upper(), text.translate(LOOKALIKES), text.replace("i", "İ")]))
        .map(lambda text: f"{text} 9")
    )
)
def test_every_spelling_of_months_and_units_is_handled(parts: list[str]) -> None:
    text = ". ".join(parts)
    assert not grounded(text, text).unsupported


def test_writers_own_count_is_left_open() -> None:
    assert grounded("They compared three options.", "we could take the bus or walk or fly") == Grounding(1.0, (), False)


def test_right_names_do_not_excuse_a_wrong_figure() -> None:
    found = grounded("Maria, Paulo, Chen and Priya paid $40.", "maria, paulo, chen and priya paid $30")
    assert found == Grounding(0.0, ("$40",), wrong_figure=True)


def test_rolling_summary_does_not_hide_inventions() -> None:
    carried = "Maria lives in Lima with Paulo, Chen and Priya."
    evidence = Evidence(f"{carried}\nmaria bought a bike", "en")
    found = ground([], evidence, "en", rolling=f"{carried} Maria bought a bike from Hector.", carried=carried)
    assert found == Grounding(0.0, ("Hector",), wrong_figure=False)


def test_listed_problems_are_bounded() -> None:
    names = " ".join(f"met Xavier{chr(97 + n // 26)}{chr(97 + n % 26)}q" for n in range(100))
    found = grounded(f"They {names} and Y{'z' * 35}.", "nobody")
    assert len(found.unsupported) == 20
    assert max(map(len, found.unsupported)) <= 60


@given(st.integers(13, 10**9), st.sampled_from([",", ".", " ", "'", "\u202f"]))
def test_thousands_separators_change_no_number(number: int, separator: str) -> None:
    assert grounded(f"It was {number:,}.".replace(",", separator, 5), f"exactly {number} of them").share == 1.0


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_can_be_read(summary: str, source: str) -> None:
    found = ground([summary], Evidence(source, detect(source)), detect(source))
    assert 0.0 <= found.share <= 1.0
    assert (found.share == 1.0) == (found.unsupported == ())


@pytest.mark.parametrize(
    "text",
    [
        "1000 9. 7 sep 9",
        "may 10:15",
        "10:15 sep",
        "10:15 1000 7",
        "12 2024 1,000",
        "1000000 9. 7 sep 9",
        "¼A",
        "a 12.25A fuse",
        "A٣",
        "0:01N",
        "AA\U0003d000",
    ],
)
def test_text_reads_alike_as_summary_and_source(text: str) -> None:
    assert not grounded(text, text).unsupported


@given(st.text(max_size=300))
def test_text_supports_itself(text: str) -> None:
    language = detect(text)
    assert ground([text], Evidence(text, language), language).share == 1.0
