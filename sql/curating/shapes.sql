-- name: people
-- How many people asked, where users are not known how many sessions.
select count(distinct coalesce(user_hash, session_id, interaction_id)) as people from interactions where emptied is null

-- name: plain_words
-- Words that say nothing about what a request is for: greetings, thanks, polite phrases, and the small words of the languages that
-- most traffic is in. Rarer languages lose theirs by comparison with the answers (topics).
create or replace temp table plain_words as
select distinct unnest(string_split(concat_ws(' ',
    'hi hello hey hiya howdy greetings good morning afternoon evening night day dear welcome bye goodbye cheers sorry please pls plz',
    'thanks thank thx okay okey yes yeah yep yup nope sure fine great nice cool awesome perfect wow hmm well right alright lol',
    'the and for are was were been being has have had having does did doing done don doesn didn isn aren wasn weren won wouldn',
    'couldn shouldn can cannot could would should will shall may might must ought not nor but than then that this these those there',
    'here what when where which who whom whose why how you your yours yourself she her hers him his himself herself they them their',
    'theirs our ours ourselves its itself myself mine with without within from into onto upon about above below under over between',
    'before after during until since against through because while although though unless whether either neither both each every any',
    'some all most more less many much few several such only just very too also even still yet already again ever never always often',
    'now soon today later once same other another else own out off down back away around near far one two three first second next last',
    'get got gets getting give gave given let lets make made makes making take took taken put come came going goes gone went see saw',
    'seen look looks looking know knows knew known think thought say said says saying tell told ask asked asking answer answers try',
    'tried trying want wanted wants need needs needed like likes liked use used uses using keep kept show shows shown help helps',
    'helped helping question questions problem issue issues thing things something anything nothing everything someone anyone everyone',
    'way ways lot lots bit kind sort really actually maybe perhaps probably quite able way possible following based per via etc best',
    'better new old big small little long short high low ive ill youre dont cant doesnt whats thats wont isnt hasnt havent using',
    'quick wondering wonder hoping hope someone somebody currently basically simply sir madam guys team bot assistant chat human agent',
    'hallo guten tag morgen abend danke bitte der die das den dem des ein eine einen einem einer und oder aber nicht ist sind war',
    'waren hat haben habe hatte kann konnte muss soll wird werden wurde ich wir ihr sie mein meine meinen meiner dein deine uns euch',
    'mich mir dich dir sich mit von vom zum zur bei aus auf nach vor seit durch ohne gegen unter wie was wer wann warum welche welcher',
    'auch noch schon sehr nur mehr wenn dass weil als bis hier dort dann also mal gibt geht machen brauche hilfe frage',
    'bonjour bonsoir salut merci les une des est sont suis etes avez avoir ont pas plus dans pour avec sur par que qui quoi comment',
    'pourquoi quand quel quelle mais donc car mon mes ton son ses notre nos votre vos leur ils elle elles nous vous cette ces aux',
    'peux peut pouvez voudrais veux besoin aide faire fait bien tres aussi encore hola buenos buenas dias tardes noches gracias por',
    'favor los las una unos del para con sin sobre como cuando donde quien cual esta este estos estas ese esa eso son soy eres ser',
    'estar estoy tiene tengo tienes puedo puede puedes quiero quiere necesito ayuda hacer muy mas pero porque hay sus nos que',
    'ola bom boa dia tarde noite obrigado obrigada nao sim uma uns umas dos das nos nas pelo pela meu minha seu sua voce eles elas',
    'isso isto esse essa aquele mais mas quando onde quem qual estou esta posso pode quero preciso ajuda fazer tambem',
    'ciao buongiorno buonasera salve grazie prego gli della delle dello dei degli nel nella con per sono sei siamo hanno come dove',
    'quando cosa quale perche non piu molto anche questo questa quello mio mia tuo suo posso puoi vorrei voglio bisogno aiuto fare',
    'hoi goedemorgen dank bedankt alstublieft het een van voor met niet zijn heb heeft hebben wat hoe waar wie waarom kan kunt wil mijn',
    'привет здравствуйте спасибо пожалуйста как что это для мне меня вас вам или где когда почему можно нужно есть'
), ' ')) as word

-- name: asked_words
-- The words of what each conversation asks for: of its first message of a user that says more than a greeting, with the place of
-- each. Parts with digits, marks of addresses or paths are names and numbers of one request, and placeholders: they are left out.
create or replace temp table asked_words as
with said as (
    select interaction_id, generate_subscripts(said, 1) as turn, unnest(said) as text from texts
),
words as (
    select
        interaction_id, turn,
        unnest(list_distinct(words_in(regexp_replace(lower(text), '[^\s\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]*[\d_@/\\][^\s\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]*', ' ', 'g')))) as word,
        lower(text) as text
    from said
),
telling as (
    select interaction_id, turn, word, instr(text, word) as place from words anti join plain_words using (word)
),
first_telling as (
    select interaction_id, min(turn) as turn from telling group by interaction_id
)
select interaction_id, word, place from telling semi join first_telling using (interaction_id, turn)

-- name: row_topics
-- What each conversation asks for: the topic of its words that tells most; before there are topics, its first word. One that says
-- nothing takes what its session asked before, else after it.
create or replace temp table row_topics as
with named as (
    select
        interaction_id,
        case when (select count(*) from topics) = 0 then arg_min(word, (place, word)) else coalesce(arg_min(name, rank), 'other') end as topic
    from asked_words left join topics using (word)
    group by interaction_id
)
select
    interaction_id,
    coalesce(
        topic,
        last_value(topic ignore nulls) over (partition by session_id order by ts, interaction_id),
        first_value(topic ignore nulls) over (
            partition by session_id order by ts, interaction_id rows between unbounded preceding and unbounded following
        ),
        ''
    ) as topic
from conversations
left join named using (interaction_id)

-- name: topics
-- What people ask for, as words that many of them share: each topic is a word, named with the two words that go with it most.
-- A word counts by how much it tells: p ln(p)^2 of the share p of people who say it, which is highest at one in seven. A word
-- that answers hold as often whether it was asked or not is a small word of its language. A topic, and each word of its name, was said by
-- $least people or more; fewer than $enough people have no topics.
with people as (
    select interaction_id, coalesce(user_hash, session_id, interaction_id) as person from conversations
),
whole as (
    select count(distinct person) as people, count(*) as requests from people semi join asked_words using (interaction_id)
),
said as (
    select word, count(distinct person) as said_by, count(*) as requests
    from asked_words join people using (interaction_id)
    group by word
    having said_by >= $least
),
answer_words as (
    select interaction_id, unnest(list_distinct(words_in(lower(answer_text[1:2000])))) as word from texts
),
answered as (
    select word, count(*) as requests from answer_words semi join said using (word) group by word
),
repeated as (
    select word, count(*) as requests
    from answer_words semi join asked_words using (interaction_id, word)
    group by word
),
telling as (
    select said.word, said_by / whole.people as share, said_by
    from said
    cross join whole
    left join answered using (word)
    left join repeated using (word)
    where
        said_by * 2 <= whole.people
        and not (
            coalesce(answered.requests, 0) * 20 >= whole.requests
            and coalesce(repeated.requests, 0) / said.requests < 1.3 * answered.requests / whole.requests
        )
),
ranked as (
    select word, share, row_number() over (order by share * ln(share) ** 2 desc, word) as rank from telling
),
best as (
    select interaction_id, arg_min(word, rank) as word from asked_words join ranked using (word) group by interaction_id
),
topics as (
    select best.word, count(distinct person) as asked_by
    from best join people using (interaction_id) cross join whole
    group by best.word, whole.people
    having asked_by >= greatest($least, whole.people / 50) and whole.people >= $enough
    order by asked_by desc, best.word
    limit $most
),
asked_for as (
    select interaction_id, arg_min(word, rank) as topic
    from asked_words join ranked using (word) semi join topics using (word)
    group by interaction_id
),
beside as (
    select topic, asked_words.word, count(distinct person) as said_by
    from asked_for join asked_words using (interaction_id) join people using (interaction_id)
    where asked_words.word <> topic
    group by topic, asked_words.word
    having said_by >= $least
),
sizes as (
    select topic, count(distinct person) as people from asked_for join people using (interaction_id) group by topic
),
companions as (
    select
        topic, word,
        row_number() over (partition by topic order by beside.said_by * ln(beside.said_by / sizes.people / share) desc, word) as place
    from beside join sizes using (topic) join ranked using (word)
    where beside.said_by / sizes.people > share
),
named as (
    select
        ranked.word as topic, ranked.rank,
        concat_ws(' ', ranked.word, string_agg(companions.word, ' ' order by place) filter (where place <= 2)) as name
    from topics
    join ranked using (word)
    left join companions on companions.topic = topics.word
    group by ranked.word, ranked.rank
)
select topic as word, name, rank from named
union all
-- a request that has another word of the name alone is of the topic too
select word, name, named.rank + 1000 as rank
from companions join named using (topic) anti join topics using (word)
where place <= 2
order by rank, word
