"""PostgreSQL's templates: to_char, to_date, to_timestamp and to_number.

DuckDB calls these functions (`postgres_functions.register`), because a template is read at run time and SQL
macros for it would be copied into each other's bodies many times over. The words of a template are kept. What
is not built is an error, never another text: a caller cannot see that a pattern was ignored.
Source: PostgreSQL 15 documentation, "Data Type Formatting Functions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import NamedTuple

TEMPLATES_KEPT = 256
# The longest template, in characters.
TEMPLATE_MAX = 1024
# The most decimals of to_number: its macro returns DECIMAL(38, 9).
DECIMALS_MAX = 9
_MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
]  # fmt: skip
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ROMAN_MONTHS = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)


class Word(NamedTuple):
    """A word of a template.

    Args:
        key: the pattern in capital letters; empty for other text.
        text: the pattern as written, or the other text itself.
        bare: FM or TM precedes it.
        ordinal: TH or th after it, else empty.
    """

    key: str
    text: str
    bare: bool = False
    ordinal: str = ""


_DATE_PATTERN = (
    r"(?P<text>Y,YYY|YYYY|YYY|YY|Y|IYYY|IYY|IY|IDDD|ID|IW|I|HH24|HH12|HH|MI|SSSSS|SSSS|SS|MS|US|FF[1-6]"
    r"|A\.M\.|P\.M\.|AM|PM|MONTH|MON|MM|DAY|DY|DDD|DD|D|WW|W|CC|J|Q|RM|TZH|TZM|TZ|OF|B\.C\.|A\.D\.|BC|AD)"
)
_DATE_WORD = re.compile(
    r'"(?P<quoted>(?:[^"\\]|\\.)*)"?|\\(?P<escaped>")'
    rf"|(?P<bare>(?:FM|TM)*){_DATE_PATTERN}(?P<ordinal>TH)?|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER_WORD = re.compile(
    r'"(?P<quoted>(?:[^"\\]|\\.)*)"?|\\(?P<escaped>")'
    r"|(?P<text>FM|MI|PR|PL|SG|TH|RN|EEEE|[90.,DGSLV])|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)


def _words(pattern: re.Pattern[str], template: str) -> tuple[Word, ...]:
    if len(template) > TEMPLATE_MAX:
        raise ValueError(f"a template has at most {TEMPLATE_MAX} characters")
    found = []
    for match in pattern.finditer(template):
        groups = match.groupdict()
        if groups["text"]:
            found.append(
                Word(
                    groups["text"].upper(),
                    groups["text"],
                    bool(groups.get("bare")),
                    groups.get("ordinal") or "",
                )
            )
        elif groups["quoted"] is not None:
            found.append(Word("", re.sub(r"\\(.)", r"\1", groups["quoted"])))
        else:
            found.append(Word("", groups["escaped"] or groups["other"]))
    return tuple(found)


@lru_cache(TEMPLATES_KEPT)
def _date_words(template: str) -> tuple[Word, ...]:
    return _words(_DATE_WORD, template)


class Moment(NamedTuple):
    """A date and time, or an interval, in parts.

    Args:
        day: the calendar day, moved into years that Python knows; None for an interval.
        days: the day of the month, or the interval's days.
        micros: microseconds of the second.
        offset: seconds east of UTC; None without a time zone.
    """

    day: date | None
    year: int
    month: int
    days: int
    hour: int
    minute: int
    second: int
    micros: int
    offset: int | None = None
    zone: str = ""


_EPOCH = datetime(1970, 1, 1)
# The Gregorian calendar repeats after 400 years, which are whole weeks.
_CYCLE = 146_097 * 86_400_000_000


def of_time(micros: int, offset: int | None = None, zone: str = "") -> Moment:
    """The parts of microseconds since 1970, in local time."""
    cycles = 0
    while micros < -62_000_000_000_000_000:
        micros, cycles = micros + _CYCLE, cycles - 1
    while micros > 250_000_000_000_000_000:
        micros, cycles = micros - _CYCLE, cycles + 1
    at = _EPOCH + timedelta(microseconds=micros)
    year = at.year + 400 * cycles
    return Moment(
        at.date(), year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, offset, zone
    )


def of_interval(months: int, days: int, micros: int) -> Moment:
    """The parts of an interval, each with its sign."""

    def split(value: int, by: int) -> tuple[int, int]:
        found, rest = divmod(abs(value), by)
        return (found, rest) if value >= 0 else (-found, -rest)

    year, month = split(months, 12)
    seconds, rest = split(micros, 1_000_000)
    minutes, second = split(seconds, 60)
    hour, minute = split(minutes, 60)
    return Moment(None, year, month, days, hour, minute, second, rest)


def char_of_time(moment: Moment, template: str) -> str | None:
    """to_char of a date and time or an interval.

    >>> char_of_time(of_time(1_709_647_629_000_000), "FMDay, DDth FMMonth YYYY HH12:MI AM")
    'Tuesday, 05th March 2024 02:07 PM'
    """
    return (
        "".join(word.text if not word.key else _dated(moment, word) for word in _date_words(template)) or None
    )


def _dated(moment: Moment, word: Word) -> str:
    rule = _DATED.get(word.key)
    if rule is None or (moment.day is None and word.key not in _OF_INTERVALS):
        raise ValueError(f'to_char cannot show "{word.text}" here')
    value, width = rule(moment)
    if isinstance(value, str):
        shown = _cased(word, value)
        return shown if word.bare else shown.ljust(width)
    shown = str(value) if word.bare else f"{'-' if value < 0 else ''}{abs(value):0{width}}"
    return shown + (_ordinal(shown, word.ordinal) if word.ordinal else "")


def _cased(word: Word, value: str) -> str:
    first = [letter for letter in word.text if letter.isalpha()][:2]
    if first[0].islower():
        return value.lower()
    return value.upper() if len(first) < 2 or first[1].isupper() else value


def _ordinal(shown: str, like: str) -> str:
    teen = len(shown) > 1 and shown[-2] == "1"
    found = "th" if teen else {"1": "st", "2": "nd", "3": "rd"}.get(shown[-1], "th")
    return found.upper() if like.isupper() else found


def _day(moment: Moment) -> date:
    assert moment.day is not None, "an interval has no calendar day"
    return moment.day


def _iso_year(moment: Moment) -> int:
    day = _day(moment)
    return day.isocalendar().year - day.year + moment.year


def _era(moment: Moment) -> int:
    return moment.year if moment.year > 0 or moment.day is None else 1 - moment.year


def _offset(moment: Moment) -> str:
    seconds = moment.offset or 0
    minutes = abs(seconds) // 60
    shown = f"{'-' if seconds < 0 else '+'}{minutes // 60:02}"
    return shown if minutes % 60 == 0 else f"{shown}:{minutes % 60:02}"


def _noon(moment: Moment, *, dots: bool) -> str:
    late = moment.hour >= 12
    return ("P.M." if late else "A.M.") if dots else ("PM" if late else "AM")


def _seconds_of_day(moment: Moment) -> int:
    return moment.hour * 3600 + moment.minute * 60 + moment.second


def _iso_day_of_year(moment: Moment) -> int:
    _, week, day = _day(moment).isocalendar()
    return (week - 1) * 7 + day


def _fraction(digits: int) -> Callable[[Moment], tuple[int | str, int]]:
    return lambda at: (f"{abs(at.micros):06}"[:digits], 0)


# Pattern -> (value, width): a number is filled with zeros to the width, a text with blanks.
_DATED: dict[str, Callable[[Moment], tuple[int | str, int]]] = {
    "YYYY": lambda at: (_era(at), 4),
    "YYY": lambda at: (_era(at) % 1000, 3),
    "YY": lambda at: (_era(at) % 100, 2),
    "Y": lambda at: (_era(at) % 10, 1),
    "Y,YYY": lambda at: (f"{_era(at) // 1000},{_era(at) % 1000:03}", 0),
    "IYYY": lambda at: (_iso_year(at), 4),
    "IYY": lambda at: (_iso_year(at) % 1000, 3),
    "IY": lambda at: (_iso_year(at) % 100, 2),
    "I": lambda at: (_iso_year(at) % 10, 1),
    "MM": lambda at: (at.month, 2),
    "MONTH": lambda at: (_MONTHS[at.month - 1], 9),
    "MON": lambda at: (_MONTHS[at.month - 1][:3], 0),
    "RM": lambda at: (_ROMAN_MONTHS[at.month - 1], 4),
    "DAY": lambda at: (_DAYS[_day(at).weekday()], 9),
    "DY": lambda at: (_DAYS[_day(at).weekday()][:3], 0),
    "DDD": lambda at: (_day(at).timetuple().tm_yday, 3),
    "DD": lambda at: (at.days, 2),
    "D": lambda at: (_day(at).isoweekday() % 7 + 1, 1),
    "ID": lambda at: (_day(at).isoweekday(), 1),
    "IDDD": lambda at: (_iso_day_of_year(at), 3),
    "IW": lambda at: (_day(at).isocalendar().week, 2),
    "WW": lambda at: ((_day(at).timetuple().tm_yday - 1) // 7 + 1, 2),
    "W": lambda at: ((at.days - 1) // 7 + 1, 1),
    "Q": lambda at: ((at.month - 1) // 3 + 1, 1),
    "CC": lambda at: ((_era(at) + 99) // 100, 2),
    "J": lambda at: (_day(at).toordinal() + 1_721_425 + (at.year - _day(at).year) // 400 * 146_097, 1),
    "BC": lambda at: ("BC" if at.year <= 0 else "AD", 0),
    "AD": lambda at: ("BC" if at.year <= 0 else "AD", 0),
    "B.C.": lambda at: ("B.C." if at.year <= 0 else "A.D.", 0),
    "A.D.": lambda at: ("B.C." if at.year <= 0 else "A.D.", 0),
    "HH24": lambda at: (at.hour, 2),
    "HH12": lambda at: ((abs(at.hour) + 11) % 12 + 1, 2),
    "HH": lambda at: ((abs(at.hour) + 11) % 12 + 1, 2),
    "MI": lambda at: (at.minute, 2),
    "SS": lambda at: (at.second, 2),
    "SSSS": lambda at: (_seconds_of_day(at), 1),
    "SSSSS": lambda at: (_seconds_of_day(at), 1),
    "MS": lambda at: (f"{abs(at.micros) // 1000:03}", 0),
    "US": lambda at: (f"{abs(at.micros):06}", 0),
    **{f"FF{digits}": _fraction(digits) for digits in range(1, 7)},
    "AM": lambda at: (_noon(at, dots=False), 0),
    "PM": lambda at: (_noon(at, dots=False), 0),
    "A.M.": lambda at: (_noon(at, dots=True), 0),
    "P.M.": lambda at: (_noon(at, dots=True), 0),
    "TZ": lambda at: (at.zone, 0),
    "TZH": lambda at: (_offset(at)[:3], 0),
    "TZM": lambda at: (f"{abs(at.offset or 0) // 60 % 60:02}", 0),
    "OF": lambda at: (_offset(at), 0),
}
# PostgreSQL shows these patterns of an interval; the calendar's others it refuses.
_OF_INTERVALS = frozenset(
    {"YYYY", "YYY", "YY", "Y", "MM", "DD", "HH24", "HH12", "HH", "MI", "SS", "SSSS", "SSSSS", "MS", "US"}
    | {f"FF{digits}" for digits in range(1, 7)}
)


@lru_cache(TEMPLATES_KEPT)
def _number_words(template: str) -> tuple[Word, ...]:
    return _words(_NUMBER_WORD, template)


def char_of_number(value: Decimal, template: str, *, exact: bool = True) -> str:
    """to_char of a number.

    Args:
        exact: a decimal, whose halves are rounded away from zero; else a float, rounded to even.

    >>> char_of_number(Decimal("-1234.5"), "FM9,999.00"), char_of_number(Decimal(485), "999")
    ('-1,234.50', ' 485')
    """
    words = _number_words(template)
    keys = [word.key for word in words]
    bare = "FM" in keys
    if "RN" in keys:
        roman = _roman(int(value.to_integral_value(ROUND_HALF_UP)))
        return roman if bare else roman.rjust(15)
    point = next((at for at, key in enumerate(keys) if key in (".", "D", "V")), len(keys))
    whole = sum(key in ("9", "0") for key in keys[:point])
    scale = sum(key in ("9", "0") for key in keys[point:])
    if "EEEE" in keys:
        shown = f"{value:.{scale}e}"
        mantissa, _, power = shown.partition("e")
        return f"{'' if bare or value < 0 else ' '}{mantissa}e{power[0]}{power[1:]:0>2}"
    if not value.is_finite():
        raise ValueError("to_char cannot show a number that is not finite")
    if "V" in keys:
        value = value.scaleb(scale, _EXACT)
        whole, scale, point = whole + scale, 0, len(keys)
    rounding = ROUND_HALF_UP if exact else "ROUND_HALF_EVEN"
    rounded = value.quantize(Decimal(1).scaleb(-scale), rounding, _EXACT)
    digits = f"{abs(rounded):f}".replace(".", "").rjust(scale + 1, "0")
    left, right = digits[: len(digits) - scale].lstrip("0"), digits[len(digits) - scale :]
    if len(left) > whole:
        left, right = "#" * whole, "#" * scale
    return _laid_out(words, keys, left, right, point, whole, bare, value < 0)


def _laid_out(
    words: Sequence[Word],
    keys: Sequence[str],
    left: str,
    right: str,
    point: int,
    whole: int,
    bare: bool,
    negative: bool,
) -> str:
    """The digits at the places of a template."""
    places = [key for key in keys if key in ("9", "0")]
    zero = places.index("0") if "0" in places else len(places)
    if not left and not right and zero >= whole and whole:
        left = "0"
    padded = left.rjust(whole)
    kept = len(right.rstrip("0"))
    if bare:
        kept = max(kept, max((at + 1 for at, key in enumerate(places[whole:]) if key == "0"), default=0))
        if not left and not kept and right and zero >= whole and not right.strip("0"):
            padded = "0".rjust(whole)
    signed = {"S", "MI", "SG", "PL", "PR"} & set(keys)
    lead_s = "S" in keys and keys.index("S") < next(
        (at for at, key in enumerate(keys) if key in ("9", "0")), len(keys)
    )
    before = ("-" if negative else "" if bare else " ") if not signed or signed == {"PL"} else ""
    if "PR" in signed:
        before = "<" if negative else "" if bare else " "
    elif lead_s:
        before = "-" if negative else "+"
    if "PL" in signed and negative is False:
        before = "" if bare else " "
    out: list[str] = []
    place = 0
    begun = False
    for at, (word, key) in enumerate(zip(words, keys, strict=True)):
        if key in ("9", "0") and at < point:
            digit = padded[place]
            shown = digit != " " or place >= zero
            place += 1
            if shown and not begun:
                begun = True
                out.append(before)
            out.append(("0" if digit == " " else digit) if shown else "" if bare else " ")
        elif key in ("9", "0"):
            if not bare or place - whole < kept:
                out.append(right[place - whole])
            place += 1
        elif key in (".", "D"):
            if not begun:
                begun = True
                out.append(before)
            out.append(".")
        elif key in (",", "G"):
            out.append("," if begun else "" if bare else " ")
        elif key == "MI" or (key == "S" and not lead_s):
            plus = "+" if key == "S" else "" if bare else " "
            out.append("-" if negative else plus)
        elif key == "SG":
            out.append("-" if negative else "+")
        elif key == "PL":
            out.append("" if negative else "+")
        elif key == "PR":
            out.append(">" if negative else "" if bare else " ")
        elif key == "L":
            out.append("" if bare else " ")
        elif key == "TH":
            out.append("" if negative else _ordinal(left or "0", word.text))
        elif not key:
            out.append(word.text)
    return "".join(out)


_ROMAN = list(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"],
        strict=True,
    )
)


def _roman(number: int) -> str:
    if not 0 < number < 4000:
        return "#" * 15
    found = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        found += letters * count
    return found


class _Parts(NamedTuple):
    """The parts of a text, by the patterns of a template."""

    numbers: dict[str, int]
    late: bool | None
    offset: int | None


# Pattern -> its greatest number of digits.
_PARSED = {
    "YYYY": 4, "YYY": 3, "YY": 2, "Y": 1, "MM": 2, "DD": 2, "DDD": 3, "HH24": 2, "HH12": 2, "HH": 2, "MI": 2,
    "SS": 2, "MS": 3, "US": 6, "IYYY": 4, "IW": 2, "ID": 1,
}  # fmt: skip
_NAMED = {
    "MONTH": _MONTHS,
    "MON": [name[:3] for name in _MONTHS],
    "DAY": _DAYS,
    "DY": [name[:3] for name in _DAYS],
}


def _parsed(text: str, template: str) -> _Parts:
    numbers: dict[str, int] = {}
    late: bool | None = None
    offset: int | None = None
    words = _date_words(template)
    at = 0
    for index, word in enumerate(words):
        if not word.key:
            if word.text.isalnum():
                at += len(word.text)  # As many characters are skipped, whatever they are.
            elif (at < len(text) and not text[at].isalnum() and text[at] not in "+-") or (
                at < len(text) and text[at] in "+-" and not _takes_sign(words, index)
            ):
                at += 1
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            break
        if word.key in _NAMED:
            names = _NAMED[word.key]
            found = next(
                (n for n, name in enumerate(names) if text[at:].lower().startswith(name.lower())), None
            )
            if found is None:
                raise ValueError(f'invalid value "{text[at:]}" for "{word.text}"')
            at += len(names[found])
            if word.key in ("MONTH", "MON"):
                numbers["MM"] = found + 1
        elif word.key in ("AM", "PM", "A.M.", "P.M."):
            half = text[at : at + len(word.key)].upper()
            if half not in ("AM", "PM", "A.M.", "P.M."):
                raise ValueError(f'invalid value "{half}" for "{word.text}"')
            late, at = half.startswith("P"), at + len(half)
        elif word.key == "TZH":
            match = re.compile(r"([+-]?)(\d{1,2})").match(text, at)
            if match is None:
                raise ValueError(f'invalid value "{text[at:]}" for "TZH"')
            offset, at = (-1 if match[1] == "-" else 1) * int(match[2]) * 3600, match.end()
        elif word.key == "TZM" and offset is not None:
            match = re.compile(r"\d{1,2}").match(text, at)
            if match is None:
                raise ValueError(f'invalid value "{text[at:]}" for "TZM"')
            offset, at = offset + (1 if offset >= 0 else -1) * int(match[0]) * 60, match.end()
        elif word.key in _PARSED:
            following = words[index + 1] if index + 1 < len(words) else None
            bounded = word.key not in ("YYYY", "IYYY") or (following is not None and following.key in _PARSED)
            most = _PARSED[word.key] if bounded else 9
            match = re.compile(rf"\d{{1,{most}}}").match(text, at)
            if match is None:
                raise ValueError(f'invalid value "{text[at : at + most]}" for "{word.text}"')
            scale = {"MS": 3, "US": 6}.get(word.key)
            digits = match[0].ljust(scale, "0") if scale else match[0]
            numbers[word.key], at = int(digits), match.end()
            if word.key in ("YY", "Y", "YYY"):
                numbers["YYYY"] = _nearest(numbers[word.key], len(match[0]))
        else:
            raise ValueError(f'template pattern "{word.text}" is not supported here')
    return _Parts(numbers, late, offset)


def _takes_sign(words: Sequence[Word], index: int) -> bool:
    return index + 1 < len(words) and words[index + 1].key == "TZH"


def _nearest(year: int, digits: int) -> int:
    """The year nearest to 2020 that ends in these digits."""
    if digits > 3:
        return year
    if digits == 3:
        return year + (1000 if year >= 100 and year > 519 else 2000)
    return year + (2000 if year < 70 else 1900)


def time_of_text(text: str, template: str) -> tuple[datetime, int | None]:
    """to_timestamp: the local time, and seconds east of UTC if the text has them.

    >>> time_of_text("5 Mar 2024 02:07 PM", "DD Mon YYYY HH12:MI AM")
    (datetime.datetime(2024, 3, 5, 14, 7), None)
    """
    numbers, late, offset = _parsed(text, template)
    hour = numbers.get("HH24", numbers.get("HH12", numbers.get("HH", 0)))
    if late is not None:
        if not 1 <= hour <= 12:
            raise ValueError(f'hour "{hour}" is invalid for the 12-hour clock')
        hour = hour % 12 + (12 if late else 0)
    if "IYYY" in numbers:
        day = date.fromisocalendar(numbers["IYYY"], numbers.get("IW", 1), numbers.get("ID", 1))
    elif "YYYY" not in numbers:
        raise ValueError("a text without a year is not supported")
    else:
        day = date(numbers["YYYY"], numbers.get("MM", 1), numbers.get("DD", 1))
        if "DDD" in numbers:
            day = date(numbers["YYYY"], 1, 1) + timedelta(days=numbers["DDD"] - 1)
    second, minute = numbers.get("SS", 0), numbers.get("MI", 0)
    micros = numbers.get("MS", 0) * 1000 + numbers.get("US", 0)
    return datetime(day.year, day.month, day.day, hour, minute, second) + timedelta(
        microseconds=micros
    ), offset


def number_of_text(text: str, template: str) -> Decimal:
    """to_number.

    >>> number_of_text("$1,234.56-", "L9,999.99S")
    Decimal('-1234.56')
    """
    words = _number_words(template)
    if any(word.key in ("RN", "EEEE", "V", "TH") for word in words):
        raise ValueError(f'template "{template}" is not supported by to_number')
    whole = sum(word.key in ("9", "0") for word in words)
    negative = "-" in text or ("<" in text and any(word.key == "PR" for word in words))
    digits = ""
    for letter in text:
        if letter.isdigit() and whole > 0:
            digits, whole = digits + letter, whole - 1
        elif letter == "." and "." not in digits:
            digits += letter
    try:
        found = Decimal(digits)
    except InvalidOperation as error:
        raise ValueError(f'invalid input syntax for type numeric: "{text}"') from error
    if found.normalize().as_tuple().exponent < -DECIMALS_MAX:  # type: ignore[operator]
        raise ValueError(f"to_number with more than {DECIMALS_MAX} decimals is not supported")
    return -found if negative else found
