"""Labelled texts for `benchmarks.pii`: values made from the documented number rules, and what only looks like them.

    for case in cases(seed=0): case.text, case.values      # values: [("PHONE", "+49 30 901820"), ...]

Card numbers follow ISO/IEC 7812 with the networks' published ranges, accounts ISO 13616 with the SWIFT registry's country
formats, telephone numbers the national numbering plans, social security numbers the assignable areas, tokens the forms
their issuers document. Code and commands hold values as well, and more that only looks
so: products of matrices, labels, units, decorators, packages, logins, versions, ranges. Hard negatives: numbers of the same
shape that fail a checksum, order numbers, hashes, UUIDs, versions, dates, prices, ISBNs, coordinates, code and arithmetic.
Nobody's data is in here.
"""

import base64
import hashlib
import random
import string
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    group: str
    text: str
    values: list[tuple[str, str]] = field(default_factory=list)


def cases(seed: int = 0) -> Iterator[Case]:
    draw = random.Random(seed)
    for make in (_emails, _cards, _ibans, _ssns, _addresses, _phones, _tokens, _assignments, _urls):
        yield from make(draw)
    yield from _negatives(draw)
    yield from _code(draw)


def _digits(draw: random.Random, count: int) -> str:
    return "".join(draw.choices("0123456789", k=count))


def _signs(draw: random.Random, count: int, signs: str = string.ascii_letters + string.digits) -> str:
    return "".join(draw.choices(signs, k=count - 2)) + draw.choice("abcdef") + draw.choice("0123456789")


_FRAMES = {
    "EMAIL": (
        "write to {}, please",
        "Meine Adresse ist {}.",
        "From: Ann <{}>",
        "{}",
        "contact={}; cc none",
        "(see {})",
        '{{"to": "{}"}}',
        "联系邮箱：{}，谢谢",
        "Escríbeme a {} mañana",
    ),
    "CARD": (
        "my card is {}",
        "Kartennummer {} läuft ab",
        "charge {} today",
        '{{"number": "{}"}}',
        "{}, exp 12/29",
        "número: {}.",
    ),
    "IBAN": ("pay to {} please", "IBAN: {}", "Überweisung auf {}, danke", "virement sur {}.", '{{"iban": "{}"}}'),
    "SSN": ("SSN {}", "my social security number is {}.", "ssn: {}, born in May", "The applicant ({}) called"),
    "IP": (
        "the host {} is down",
        "ping {}",
        "client {} refused",
        "ssh root@{} fails",
        "Angriff von {} gemeldet",
        "from {}:",
        "[{}]",
    ),
    "PHONE": (
        "call {}",
        "my number: {}.",
        "Tel. {}",
        "Ruf mich unter {} an",
        "llámame al {} por favor",
        "{}",
        "appelle le {}, merci",
    ),
    "SECRET": ("use {} here", "export KEY={}", "the key {} stopped working", '"{}"', "token: {}", "I get 401 with {}."),
}


def _framed(draw: random.Random, group: str, kind: str, value: str) -> Case:
    return Case(group, draw.choice(_FRAMES[kind]).format(value), [(kind, value)])


def _emails(draw: random.Random) -> Iterator[Case]:
    names = (
        "ann.lee",
        "bob",
        "j.o'neil",
        "maria_garcia",
        "kenji-tanaka",
        "x",
        "li.wei88",
        "first.last+tag",
        "jürgen",
        "info%sales",
        "A.B",
    )
    hosts = (
        "example.org",
        "mail.example.co.uk",
        "uni-muenchen.de",
        "firma.com.br",
        "sub.do-main.travel",
        "例え.jp",
        "xn--bcher-kva.example",
        "correo.es",
        "a.io",
        "company.technology",
    )
    for _ in range(60):
        yield _framed(draw, "email", "EMAIL", f"{draw.choice(names)}@{draw.choice(hosts)}")
    for text, address in (
        ("bea@example.org-1", "bea@example.org"),
        ("bea@example.org-thanks!", "bea@example.org"),
        ("s-2026-bea@example.org_2", "s-2026-bea@example.org"),
        ("ann@example.co.uk_", "ann@example.co.uk"),
        ("ann@example.org--- Ann", "ann@example.org"),
        ("id ann@sub.do-main.travel-a-7.", "ann@sub.do-main.travel"),
    ):
        yield Case("email before a hyphen or underscore", text, [("EMAIL", address)])


def card_number(draw: random.Random, prefix: str, length: int, valid: bool = True) -> str:
    digits = prefix + _digits(draw, length - len(prefix) - 1)
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    check = -total % 10
    return digits + str(check if valid else (check + draw.randint(1, 9)) % 10)


_CARDS = (
    ("4", 16),
    ("4", 13),
    ("51", 16),
    ("55", 16),
    ("2221", 16),
    ("2720", 16),
    ("34", 15),
    ("37", 15),
    ("6011", 16),
    ("645", 16),
    ("65", 16),
    ("3528", 16),
    ("3589", 16),
    ("305", 14),
    ("36", 14),
    ("38", 14),
    ("62", 16),
    ("62", 19),
    ("5018", 16),
    ("2200", 16),
    ("4", 19),
)


def _grouped(number: str, separator: str) -> str:
    sizes = {15: (4, 6, 5), 14: (4, 6, 4), 13: (13,)}.get(len(number), (4, 4, 4, 4, 3))
    parts, at = [], 0
    for size in sizes:
        parts.append(number[at : at + size])
        at += size
    return separator.join(part for part in parts if part)


def _cards(draw: random.Random) -> Iterator[Case]:
    for prefix, length in _CARDS * 3:
        number = card_number(draw, prefix, length)
        yield _framed(draw, "card", "CARD", draw.choice((number, _grouped(number, " "), _grouped(number, "-"))))


# country: the account's form after the two check digits; n digits, a capital letters, c both (SWIFT registry)
_ACCOUNTS = {
    "DE": "18n",
    "FR": "10n11c2n",
    "GB": "4a14n",
    "ES": "20n",
    "IT": "1a10n12c",
    "NL": "4a10n",
    "CH": "5n12c",
    "AT": "16n",
    "BE": "12n",
    "PL": "24n",
    "SE": "20n",
    "NO": "11n",
    "DK": "14n",
    "FI": "14n",
    "PT": "21n",
    "IE": "4a14n",
    "LU": "3n13c",
    "CZ": "20n",
    "HU": "24n",
    "RO": "4a16c",
    "GR": "7n16c",
    "TR": "5n1n16c",
    "AE": "3n16n",
    "SA": "2n18c",
    "IL": "19n",
    "BR": "23n1a1c",
    "MT": "4a5n18c",
    "LI": "5n12c",
}


def iban_number(draw: random.Random, country: str, valid: bool = True) -> str:
    account, size = "", ""
    for sign in _ACCOUNTS[country]:
        if sign.isdigit():
            size += sign
            continue
        pool = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}[sign]
        account += "".join(draw.choices(pool, k=int(size)))
        size = ""
    check = 98 - int("".join(str(int(sign, 36)) for sign in account + country + "00")) % 97
    return f"{country}{check if valid else (check + 41) % 97 or 1:02d}{account}"


def _ibans(draw: random.Random) -> Iterator[Case]:
    for country in _ACCOUNTS:
        for spaced in (True, False):
            number = iban_number(draw, country)
            value = " ".join(number[at : at + 4] for at in range(0, len(number), 4)) if spaced else number
            yield _framed(draw, "iban", "IBAN", value)


def _ssns(draw: random.Random) -> Iterator[Case]:
    for number in range(30):
        area = draw.choice([n for n in range(1, 900) if n != 666])
        value = f"{area:03d}-{draw.randint(1, 99):02d}-{draw.randint(1, 9999):04d}"
        if number % 5 == 0:
            yield Case("ssn", f"social security number {value.replace('-', ' ')} please", [("SSN", value.replace("-", " "))])
        else:
            yield _framed(draw, "ssn", "SSN", value)


def _addresses(draw: random.Random) -> Iterator[Case]:
    for _ in range(30):
        value = ".".join(str(draw.randint(11, 223) if place == 0 else draw.randint(1, 254)) for place in range(4))
        if not value.startswith("127."):
            yield _framed(draw, "ipv4", "IP", value)
    for value in ("10.0.0.7", "192.168.178.21", "172.16.4.200", "203.0.113.9", "8.8.8.8"):
        yield _framed(draw, "ipv4", "IP", value)
    for value in (
        "2001:db8:85a3::8a2e:370:7334",
        "2001:0db8:0000:0000:0000:ff00:0042:8329",
        "fe80::1ff:fe23:4567:890a",
        "fd12:3456:789a:1::1",
        "2a00:1450:4001:81b::200e",
        "2001:4860:4860::8888",
        "::ffff:192.0.2.128",
    ):
        yield _framed(draw, "ipv6", "IP", value)


def _phones(draw: random.Random) -> Iterator[Case]:
    def d(count: int) -> str:
        return str(draw.randint(2, 9)) + _digits(draw, count - 1)

    forms = {
        "us": lambda: draw.choice(
            (
                f"({d(3)}) {d(3)}-{_digits(draw, 4)}",
                f"{d(3)}-{d(3)}-{_digits(draw, 4)}",
                f"{d(3)}.{d(3)}.{_digits(draw, 4)}",
                f"+1 {d(3)} {d(3)} {_digits(draw, 4)}",
                f"+1{d(3)}{d(3)}{_digits(draw, 4)}",
                f"1-{d(3)}-{d(3)}-{_digits(draw, 4)}",
                f"+1 ({d(3)}) {d(3)}-{_digits(draw, 4)}",
            )
        ),
        "uk": lambda: draw.choice(
            (
                f"020 7{_digits(draw, 3)} {_digits(draw, 4)}",
                f"07{_digits(draw, 3)} {_digits(draw, 6)}",
                f"+44 20 7{_digits(draw, 3)} {_digits(draw, 4)}",
                f"+44 (0)7{_digits(draw, 3)} {_digits(draw, 6)}",
            )
        ),
        "de": lambda: draw.choice(
            (
                f"030 {d(6)}",
                f"0176 {d(8)}",
                f"089/{d(7)}",
                f"+49 30 {d(6)}",
                f"+49 (0)151 {d(8)}",
                f"0049 221 {d(7)}",
                f"+49151{d(8)}",
            )
        ),
        "fr": lambda: draw.choice(
            (
                " ".join([f"0{draw.choice('1234567')}"] + [d(2) for _ in range(4)]),
                ".".join(["06"] + [d(2) for _ in range(4)]),
                "+33 6 " + " ".join(d(2) for _ in range(4)),
            )
        ),
        "es": lambda: f"+34 6{_digits(draw, 2)} {_digits(draw, 3)} {_digits(draw, 3)}",
        "it": lambda: draw.choice((f"+39 06 {d(4)} {d(4)}", f"06 {d(4)} {d(4)}")),
        "nl": lambda: draw.choice((f"06-{d(8)}", f"020 {d(7)}", f"+31 6 {d(8)}")),
        "ch": lambda: draw.choice((f"044 {d(3)} {d(2)} {d(2)}", f"+41 44 {d(3)} {d(2)} {d(2)}")),
        "jp": lambda: draw.choice(
            (f"03-{d(4)}-{_digits(draw, 4)}", f"090-{d(4)}-{_digits(draw, 4)}", f"+81 90-{d(4)}-{_digits(draw, 4)}")
        ),
        "kr": lambda: f"010-{d(4)}-{_digits(draw, 4)}",
        "cn": lambda: draw.choice((f"138 {_digits(draw, 4)} {_digits(draw, 4)}", f"+86 139{_digits(draw, 8)}")),
        "in": lambda: f"+91 9{_digits(draw, 4)} {_digits(draw, 5)}",
        "br": lambda: draw.choice(
            (f"(11) 9{_digits(draw, 4)}-{_digits(draw, 4)}", f"+55 11 9{_digits(draw, 4)}-{_digits(draw, 4)}")
        ),
        "au": lambda: draw.choice(
            (f"(02) 9{_digits(draw, 3)} {_digits(draw, 4)}", f"04{_digits(draw, 2)} {_digits(draw, 3)} {_digits(draw, 3)}")
        ),
    }
    for country, form in forms.items():
        for _ in range(9):
            yield _framed(draw, f"phone {country}", "PHONE", form())
    for words in (
        "my phone number is {}",
        "Handy: {}",
        "WhatsApp {}",
        "mobile {}",
        "Teléfono: {}",
        "电话：{}",
        '{{"phone": "{}"}}',
    ):
        for _ in range(3):
            value = f"9{_digits(draw, 9)}"
            yield Case("phone in context", words.format(value), [("PHONE", value)])


def _tokens(draw: random.Random) -> Iterator[Case]:
    upper, hexadecimal = string.ascii_uppercase + string.digits, "0123456789abcdef"

    def jwt() -> str:
        return ".".join(
            base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
            for text in ('{"alg":"HS256","typ":"JWT"}', f'{{"sub":"{_digits(draw, 10)}","iat":1516239022}}', _signs(draw, 32))
        )

    forms = (
        lambda: "sk-" + _signs(draw, 48),
        lambda: "sk-proj-" + _signs(draw, 60),
        lambda: "sk-ant-api03-" + _signs(draw, 90),
        lambda: "ghp_" + _signs(draw, 36),
        lambda: "github_pat_" + _signs(draw, 60),
        lambda: "glpat-" + _signs(draw, 20),
        lambda: "AKIA" + "".join(draw.choices(upper, k=16)),
        lambda: "AIza" + _signs(draw, 35),
        lambda: "hf_" + _signs(draw, 34),
        lambda: "sk_live_" + _signs(draw, 24),
        lambda: "xoxb-" + _digits(draw, 12) + "-" + _digits(draw, 12) + "-" + _signs(draw, 24),
        lambda: "npm_" + _signs(draw, 36),
        lambda: "SG." + _signs(draw, 22) + "." + _signs(draw, 43),
        jwt,
        lambda: "dop_v1_" + "".join(draw.choices(hexadecimal, k=64)),
        lambda: "gsk_" + _signs(draw, 52),
        lambda: "shpat_" + "".join(draw.choices(hexadecimal, k=32)),
        lambda: "hvs." + _signs(draw, 28),
        lambda: "-----BEGIN RSA PRIVATE KEY-----\n" + _signs(draw, 64) + "\n-----END RSA PRIVATE KEY-----",
        lambda: "ya29." + _signs(draw, 60),
        lambda: "pypi-" + _signs(draw, 120),
        lambda: f"{_digits(draw, 9)}1:AA" + _signs(draw, 33),
    )
    for form in forms * 2:
        yield _framed(draw, "token", "SECRET", form())


def _assignments(draw: random.Random) -> Iterator[Case]:
    for frame in (
        "Authorization: Bearer {}",
        'api_key = "{}"',
        "API_KEY={}",
        "client_secret: '{}'",
        '{{"access_token": "{}"}}',
        "aws_secret_access_key = {}",
        "my api key is {}",
        'headers["X-Auth-Token"] = "{}"',
        "SECRET_KEY: {}",
        "auth_token={}&x=1",
    ):
        for _ in range(3):
            value = draw.choice((_signs(draw, 40), _signs(draw, 32, "0123456789abcdef")))
            yield Case("assigned secret", frame.format(value), [("SECRET", value)])
    for frame in (
        "password: {}",
        "my password is {}",
        "PGPASSWORD={}",
        'pwd="{}"',
        "Passwort: {}",
        "contraseña: {}",
        '{{"password": "{}"}}',
    ):
        for value in ("hunter2xyz", "Tr0ub4dor&3", "s3cr3t-Pa55"):
            yield Case("password", frame.format(value), [("SECRET", value)])


def _urls(draw: random.Random) -> Iterator[Case]:
    for scheme in ("postgres", "https", "redis", "mongodb+srv", "ftp", "amqp"):
        password = _signs(draw, 12)
        yield Case("url", f"connect to {scheme}://admin:{password}@db.example.org/x now", [("SECRET", f"admin:{password}")])
    for name in (
        "token",
        "access_token",
        "api_key",
        "key",
        "sig",
        "X-Amz-Signature",
        "password",
        "X-Amz-Security-Token",
        "auth_token",
    ):
        value = _signs(draw, 32)
        yield Case("url", f"see https://api.example.org/v1/f?x=1&{name}={value}&y=2 for it", [("SECRET", value)])


def _negatives(draw: random.Random) -> Iterator[Case]:
    """Texts in which nothing is to be found."""

    def hexadecimal(count: int) -> str:
        return hashlib.sha512(str(draw.random()).encode()).hexdigest()[:count]

    for prefix, length in _CARDS:
        yield Case(
            "card, checksum fails", f"number {_grouped(card_number(draw, prefix, length, valid=False), ' ')} was refused"
        )
        yield Case("card, checksum fails", f"id {card_number(draw, prefix, length, valid=False)}")
    for country in _ACCOUNTS:
        yield Case("iban, checksum fails", f"is {iban_number(draw, country, valid=False)} right?")
    for _ in range(12):
        yield Case("uuid", f"request {uuid.UUID(int=draw.getrandbits(128), version=4)} failed")
        yield Case("hash", f"commit {hexadecimal(40)} and {hexadecimal(7)}, sha256:{hexadecimal(64)}, md5 {hexadecimal(32)}")
        yield Case("order", f"order {_digits(draw, 10)} and order number 302-{_digits(draw, 7)}-{_digits(draw, 7)} of the 3rd")
        yield Case("order", f"Bestellnummer {_digits(draw, 8)}, tracking 1Z{_digits(draw, 3)}AA1{_digits(draw, 10)}")
        yield Case(
            "order",
            f"invoice 20260{_digits(draw, 3)}-{_digits(draw, 4)}, SKU {_digits(draw, 3)}-{_digits(draw, 3)}-{_digits(draw, 4)}",
        )
        yield Case(
            "time",
            f"2026-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}T12:30:{draw.randint(10, 59)}.{_digits(draw, 6)}Z and 1{_digits(draw, 9)}",
        )
        yield Case(
            "time",
            f"from 0{draw.randint(1, 9)}.0{draw.randint(1, 9)}.2026 12:30 to 1{draw.randint(0, 9)}/0{draw.randint(1, 9)}/2026 14:00",
        )
        yield Case(
            "price",
            f"costs $1,{_digits(draw, 3)},{_digits(draw, 3)}.50 or 1.{_digits(draw, 3)}.{_digits(draw, 3)},00 EUR or ₹12,34,{_digits(draw, 3)}",
        )
        yield Case(
            "version",
            f"version 1.{draw.randint(0, 40)}.{draw.randint(0, 40)}.{draw.randint(0, 400)} and v10.0.{draw.randint(10000, 19999)}.1",
        )
        yield Case(
            "version",
            f"Chrome/1{draw.randint(10, 30)}.0.{draw.randint(1000, 6000)}.{draw.randint(10, 99)} needs openssl>=1.1.1.{draw.randint(1, 9)}",
        )
        yield Case("number", f"pi is 3.14159265358979{_digits(draw, 12)}, n = {draw.randint(10**17, 10**18)}, -{draw.random()}")
        yield Case(
            "number", f"{draw.randint(10, 99)}.{_digits(draw, 6)}, -{draw.randint(10, 99)}.{_digits(draw, 6)} on the map"
        )
        a, b = draw.randint(1000, 99999), draw.randint(1000, 99999)
        yield Case("math", f"{a} + {b} = {a + b}; {a}*{b}={a * b}; ({a} - {b}) / 12 = {(a - b) / 12:.4f}; x+{a}{b}")
        yield Case("math", f"<<{a}*3={a * 3}>>{a * 3} apples, 2^{draw.randint(30, 60)} = {2 ** draw.randint(30, 60)}")
        yield Case("list", " ".join(f"{n:02d}" for n in range(draw.randint(1, 9), draw.randint(12, 20))) + " are the days")
        yield Case("list", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18")
        yield Case("list", "[" + ", ".join(_digits(draw, 4) for _ in range(8)) + "]")
        yield Case(
            "isbn",
            f"ISBN 978-3-16-{_digits(draw, 6)}-{_digits(draw, 1)}, DOI 10.1{_digits(draw, 3)}/{_digits(draw, 6)}.{_digits(draw, 4)}",
        )
        yield Case("mac", f"eth0 {':'.join(hexadecimal(2) for _ in range(6))} at 12:{_digits(draw, 2)}:3{_digits(draw, 1)}")
        yield Case("base64", f"data:image/png;base64,{base64.b64encode(hexadecimal(60).encode()).decode()}")
    for text in (
        "@property\ndef f(self): return a @ b",
        "user@localhost",
        "git@github.com:org/repo.git",
        "git clone git@github.com-work:org/repo.git",
        "image@2x.png and icon@3x.svg",
        "std::vector<int>::iterator it; ab::cd::ef(); a[1::2]",
        "npm i react@18.2.0 lodash@4.17.21",
        "name@ and @name",
        "127.0.0.1 and ::1 and 0.0.0.0",
        "mask 255.255.255.0",
        "api_key = os.environ['OPENAI_API_KEY']",
        "API_KEY=<your-api-key>",
        "token = get_token(request, max_tokens=128)",
        "password: ********",
        "password = getpass.getpass()",
        "SECRET_KEY = settings.SECRET_KEY",
        'api_key="YOUR_API_KEY_HERE_12345678"',
        "the token: a word piece",
        "tokens: 12345678901234567890",
        "max_tokens=4096, temperature=0.7",
        "https://example.org/a?b=c&page=12345678",
        "https://example.org:8080/path@2",
        "sk-learn and task-force-with-many-hyphenated-words",
        "desk-and-chair-for-the-office-room-x",
        "Passwords must have 8 characters",
        "Basic auth is old",
        "bearer of bad news",
        "the secret is patience",
        "key: value",
        "secret: none",
        "for i in range(1000000, 20000000): print(i)",
        "x = [555, 123, 4567]",
        "the year 1999-2005, 2010-2020",
        "5 x 555 = 2775; 555-12 = 543",
        "section 4.1.2.3 of the report",
        "RFC 2616, ISO 8601:2004, EN 60529",
        "GPT-4o-2024-08-06",
        "phone and fax are old",
        "call me 3 times",
        "score 100-99-98",
        "A1B2C3D4 E5F6 7890",
        "rgb(255, 255, 255) #1234567",
        "0x1234567890abcdef",
        "1e10 and 6.02214076e23",
        "00:11:22:33:44:55:66:77",
        "12:34:56:78",
        "bitcoin at 68,123.45",
        "ratio 16:9, 1920x1080, 3840x2160",
        "room 020 7 on floor 3",
        "zip 90210-1234",
        "flight LH 400 at 10:15, gate A12",
        "chapter 10.2.3.4",
        "temperature -40.5 to +125.0",
        "++i; +12345",
        "10^-9 m, 5.0-6.5 V",
        "SELECT * FROM t WHERE id = 4000000000000000",
        "part 0-07-140194-1",
        "PMID 12345678, arXiv:2401.12345",
        "Patent US 10,123,456 B2",
    ):
        yield Case("mixed", text)


_CODE_WITH = {
    "EMAIL": (
        '__author__ = "Ann Lee <{}>"',
        "author = {}",
        '    "email": "{}",',
        "git config --global user.email {}",
        "MAINTAINER {}",
        "# TODO({}): drop this",
        'send_mail("Hi", body, to=["{}"])',
        "mailto:{}?subject=hi",
        "Co-authored-by: Ann Lee <{}>",
        "INSERT INTO users VALUES (7, '{}', 1);",
        "curl -u {}:pass https://example.org/x",
        "assert parse('{}').ok",
        "email: {}  # of the owner",
        '<a href="mailto:{}">mail</a>',
        "@param owner {}",
        "const to = `{}`;",
        "Signed-off-by: Ann <{}>",
        "//   Contact: {}",
        "[user]\n\temail = {}\n",
        "user.email={};",
        "print(f'{{name}} {}')",
    ),
    "IP": (
        'app.run(host="{}", port=8000)',
        "ssh deploy@{}",
        "nameserver {}",
        "curl http://{}:8080/x",
        "ALLOWED_HOSTS = ['{}']",
        "iptables -A INPUT -s {} -j DROP",
        '{} - - [01/Jun/2026:10:00:00 +0000] "GET / HTTP/1.1" 200',
        "server {{ listen {}:80; }}",
        "ping -c 3 {}",
        "bind-address = {}",
    ),
    "PHONE": (
        'PHONE = "{}"',
        '{{"phone": "{}"}}',
        "# call {} when it fails",
        "twilio.send(to='{}')",
        "<a href='tel:{}'>ring</a>",
    ),
}

_CODE_WITHOUT = """
scores = q@k.transpose(-2, -1) / math.sqrt(d)|y = x@self.weight.T + b|h = A@B.T@C.mT|out = (q@k.mT).softmax(-1)@v.to(x.dtype)
loss = (w@x.t()).mean()|g = J.T@r.real|z = a@b.id + c@d.at[0]|p = q@r.dot(s)|e = u@v.conj()|n = x@y.name(z)|k = W@h.view(-1)|s = X@theta.values
this@MainActivity.applicationContext|Toast.makeText(this@Main.info, msg)|super@Outer.run()|return@forEach.it|val x = this@Scope.id|this@apply.name = "x"
sudo systemctl restart wg-quick@wg0.service|getty@tty1.service|systemctl status postgresql@15-main.service|user@1000.service|foo@bar.timer|dm@a.socket
systemctl enable openvpn-client@office.service|journalctl -u docker@x.target|serial-getty@ttyS0.device|backup@home.mount|app@prod.slice
npm i react@18.2.0 @babel/core@7.24.1|@scope/pkg@x.y|yarn add lodash@4.x|npx create-app@next.dev|uses: actions/checkout@v4.io|go get example.org/x@v1.2.3
pnpm add @types/node@20.1|pip install pkg@git+https://x|docker pull repo/app@sha256:1a2b|cargo add serde@1.0|brew install python@3.11|gcc@12.2.rs
git clone git@github.com:org/repo.git|git@gitlab.example.org:a/b.git|hg@hosted.example.org/x|scp app.tar deploy@web1.example.com:/var/www/|ssh -T git@github.com
rsync -av x/ ann@build.example.org:~/x/|ssh -i key.pem ubuntu@ec2.example.org|ssh deploy@web1.example.io|sftp -P 22 ann@files.example.net|root@web1.example.com:~# ls
[root@web1.example.com ~]# ls|remote = deploy@git.example.org:team/app.git|url = ssh://git@git.example.org/x|mosh ann@host.example.dev|https://ann@git.example.org/x
@app.route("/x")|@pytest.mark.parametrize("a", [1])|@dataclass|x@property.setter|@media (max-width: 600px)|@Override public void run()|@import url("x.css")
"user%s@example.com" % i|"%(name)s@example.org"|f"{user}@example.com"|$USER@host.example.com|`${name}@example.org`|'u%d@test.example.org' % n|<user>@example.org
case p@Person.Id => p|xs@List.map|all@Map.empty|Html@Model.Name|<p>Hello@Model.Info</p>|t@Tree.Node.run|e@Error.Call -> e|icon@2x.png|logo@3x.webp|run@job.py
foo@plt.so|memcpy@GLIBC_2.2.5|com.foo.Bar@1a2b3c.d|//a/@href.id|Object@self.id|w@cls.to|config@main.sh|a@b.c|vec@idx.x|user@localhost.localdomain
sleep 250-300-1000 ms|timeouts of 250-300-1000 ms|latency 200-400-1500 ms|sizes 320-640-1280 px|ranges 100-200-3000|batches 256-512-1024 tokens|500-600-7000 rows
open 08:00-12:30-17:00|08.00-12.00 13.00-17.00|from 0900-1700 and 1800-2000|1996.07.12 10.30|2026-06-01 08.00-09.30|12.05.2026 10:00-11:30|05/06/2026 0800-1630
Boston, MA 02110-1301, USA|CA 94105-1234|0201.0020.0002|0x00 12 34 56 78 90|00 45 67 89 12 34|0110 1001 0110|Decimal('+35236450.6')|+12345678.25 EUR|ISBN 0-306-40615-2
5237 523A 5230 5220 5236 5241 52BE|[*0205.0020.0002]|seed 0123 4567 8901|order_id: 4485983356242217|"trace_id": 4485983356242217|tracking 4485983356242217
version `1.1.1.2`|version is 1.1.1.2|the release 3.31.0.2|openssl 1.1.1.2|see section 3.2.2.1|[3.3.2.4]|3.2.2.1 Arithmetic|dpkg 1.15.7.2|$Revision: 1.5.3.4$|8.2.4.44 Bogus
libfoo-1.2.3.4.tar.gz|Version: 2.1.0.5|pkg==1.2.3.4|>=1.0.0.1,<2|v2.0.6.0|"7.1.4.3"|(5.3.6.12)|TLS 1.2.0.1|# 3.2.4.2 Vectors|Excel 16.0.4.1|firmware was 4.19.2.1
224.0.0.1|255.255.255.0|0.0.0.0/0|127.0.0.1:8000|1.3.6.1.4.1.311|postgres://username:password@db.example.org/x|password = auth[2]|token = tokens[0]|sk-ssh-ed25519-cert-v01
x[..., 1::2]|a::b::c|std::chrono::ms|dead:beef|12:34:56:789|00:1a:2b:3c:4d:5e|#ff00aa 1234567|1_000_000_000|0b1010|range(0, 1000000)|sha1:da39a3ee5e6b4b0d|0777 0644 0755
"""


def _code(draw: random.Random) -> Iterator[Case]:
    values = {
        "EMAIL": (
            "jane.doe@example.com",
            "j.lee@uni-muenchen.de",
            "bob@corp.example.io",
            "info@firma.co.uk",
            "k@acme.dev",
            "MAX@FIRMA.DE",
        ),
        "IP": ("10.0.0.7", "192.168.178.21", "93.184.216.34", "203.0.113.9"),
        "PHONE": ("+49 30 901820", "+15552345678", "(555) 234-5678"),
    }
    for kind, frames in _CODE_WITH.items():
        for frame in frames:
            for value in draw.sample(values[kind], 3):
                yield Case(f"code with {kind}", frame.format(value), [(kind, value)])
    for line in _CODE_WITHOUT.strip().split("\n"):
        for text in line.split("|"):
            yield Case("code", text)
            yield Case("code in an answer", f"Use this:\n```\n{text}\n```\nIt works.")
