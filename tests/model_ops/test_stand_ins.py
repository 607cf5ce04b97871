"""Stand-ins for an answer's objects in its tests: right programs pass, and no operator or exception of a wrong one passes for it."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from model_ops.tasks.unit_tests import run_tests

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is locked down on Linux only")
HUMAN_EVAL = Path(__file__).parents[3] / "shared" / "data" / "HumanEval.jsonl.gz"


def passes(answer, test, **given):
    return run_tests(answer, test, seconds=20, memory_mb=512, **given).passed


HONEST = {
    "vectors": """
class V:
    def __init__(s,x,y): s.x,s.y=x,y
    def __add__(s,o): return V(s.x+o.x,s.y+o.y)
    def __mul__(s,k): return V(s.x*k,s.y*k)
    __rmul__=__mul__
    def __eq__(s,o): return (s.x,s.y)==(o.x,o.y)
    def __hash__(s): return hash((s.x,s.y))
    def __repr__(s): return f'V({s.x}, {s.y})'
    def __abs__(s): return (s.x**2+s.y**2)**.5
    def __iter__(s): yield s.x; yield s.y
    def dot(s,o): return s.x*o.x+s.y*o.y
# tests
assert V(1,2)+V(3,4)==V(4,6)
assert V(1,2)*3==V(3,6) and 3*V(1,2)==V(3,6)
assert (V(1,2)*3).x==3
assert repr(V(1,2)*2)=='V(2, 4)'
assert abs(V(3,4))==5
assert list(V(1,2)*2)==[2,4]
assert len({V(1,1),V(1,1)})==1
assert V(1,2).dot(V(3,4))==11
assert {V(1,2):3}[V(1,2)]==3
assert V(1,2) in [V(0,0),V(1,2)]
assert sorted([V(2,1)],key=lambda v:v.x)[0].x==2
""",
    "a function that returns a function": """
def make_adder(n):
    return lambda x:x+n
# tests
add5=make_adder(5)
assert add5(3)==8 and abs(add5(0.5)-5.5)<1e-9
""",
    "named tuples": """
from collections import namedtuple
P=namedtuple('P','x y')
def f(): return P(1,2)
# tests
p=f()
assert p==(1,2) and p.x==1 and p.y==2 and p==P(1,2) and p._replace(x=5)==(5,2) and len(p)==2 and isinstance(p,tuple) and isinstance(p,P)
try: p.x=3
except AttributeError: pass
else: assert 0
""",
    "typed named tuples": """
from typing import NamedTuple
class P(NamedTuple):
    x:int
    y:int=0
    def norm(self): return self.x+self.y
# tests
assert P(3,4).norm()==7 and P(3)==(3,0) and sorted([P(2),P(1)])==[P(1),P(2)] and [P(1,2)]==[(1,2)]
""",
    "enumerations": """
import enum
class C(enum.Enum):
    R=1
    G=2
class I(enum.IntEnum):
    A=1
    B=2
def f(): return C.R
def g(): return I.B
# tests
assert f()==C.R and f() is C.R and f()!=C.G and C.R.value==1 and C.R.name=='R' and C(2) is C.G and C['G']==C.G
assert [c.name for c in C]==['R','G'] and C.R in C and len(C)==2
assert g()==2 and g()==I.B and I.B.name=='B' and I.A<I.B and g() is I.B
""",
    "data classes": """
from dataclasses import dataclass, field
@dataclass(order=True, frozen=True)
class P:
    x:int
    y:int=0
# tests
assert P(1)==P(1,0) and P(1)<P(2) and repr(P(1,2))=='P(x=1, y=2)' and len({P(1),P(1)})==1
try: P(1).x=3
except AttributeError: pass
else: assert 0
""",
    "a cache that is a dict": """
from collections import OrderedDict
class LRUCache(OrderedDict):
    def __init__(s,c): super().__init__(); s.c=c
    def get(s,k):
        if k not in s: return -1
        s.move_to_end(k); return s[k]
    def put(s,k,v):
        s[k]=v; s.move_to_end(k)
        if len(s)>s.c: s.popitem(last=False)
# tests
c=LRUCache(2)
c.put(1,1);c.put(2,2)
assert c.get(1)==1
c.put(3,3)
assert c.get(2)==-1 and c[3]==3 and len(c)==2
""",
    "a stack that is a list": """
class Stack(list):
    def push(self,x): self.append(x)
    def peek(self): return self[-1]
# tests
s=Stack()
s.push(1);s.push(2)
assert s.peek()==2 and s.pop()==2 and len(s)==1 and not Stack() and s and list(s)==[1]
""",
    "plain subclasses and collections": """
class L(list): pass
class F(float):
    def __sub__(self,o): return 0
import collections
def f(): return L([1,2])
def g(): return F(2.5)
def h(): return collections.Counter('aab'), collections.defaultdict(int,a=1), collections.OrderedDict(a=1), collections.deque([1,2],3)
# tests
assert f()==[1,2] and abs(g()-2.5)<1e-9 and g()-1==1.5
c,d,o,q=h()
assert c=={'a':2,'b':1} and c.most_common(1)==[('a',2)] and d=={'a':1} and o=={'a':1} and q.popleft()==1 and q.maxlen==3
""",
    "times and paths": """
import datetime, fractions, decimal, pathlib
def f(): return datetime.timedelta(days=3), datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc), fractions.Fraction(1,3), pathlib.Path('a')/'b'
def d(a,b): return a-b
# tests
import datetime, fractions, pathlib
assert f()==(datetime.timedelta(days=3), datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc), fractions.Fraction(1,3), pathlib.Path('a/b'))
assert d(datetime.date(2020,1,3),datetime.date(2020,1,1))==datetime.timedelta(2)
assert d(datetime.date(2020,1,3),datetime.date(2020,1,1)).days==2
""",
    "types and exceptions as arguments": """
def only(xs,t): return [x for x in xs if isinstance(x,t)]
def kind(x): return type(x)
def catches(f,e):
    try: f()
    except e: return 'caught'
# tests
assert only([1,'a',2.5],str)==['a'] and kind(3) is int and kind('a')==str and only([1,'a',2.5],(int,float))==[1,2.5]
def bad(): raise KeyError('x')
assert catches(bad,KeyError)=='caught' and catches(bad,(LookupError,ValueError))=='caught'
""",
    "decorators": """
import functools
def memo(fn):
    'memo doc'
    cache={}
    @functools.wraps(fn)
    def w(*a):
        if a not in cache: cache[a]=fn(*a)
        return cache[a]
    w.cache=cache
    return w
# tests
calls=[]
@memo
def sq(x):
    'squares'
    calls.append(x)
    return x*x
assert sq(3)==9 and sq(3)==9 and calls==[3] and sq.__name__=='sq' and sq.__doc__=='squares' and memo.__doc__=='memo doc'
""",
    "functions as arguments": """
def sort(xs,key=None,reverse=False):
    if key: return sorted(xs,key=key,reverse=reverse)
    return sorted(xs)
# tests
assert sort([3,1,2])==[1,2,3] and sort(['bb','a'],key=len)==['a','bb'] and sort([1,2],key=lambda x:-x)==[2,1]
""",
    "context managers": """
from contextlib import contextmanager
log=[]
@contextmanager
def managed(x):
    log.append('in')
    try: yield x
    finally: log.append('out')
def get(): return log
class T:
    def __enter__(s): s.n=1; return s
    def __exit__(s,k,v,t): s.n=2; s.bad=k is not None
# tests
with managed(4) as m: assert m==4
assert get()==['in','out']
with T() as t: assert t.n==1
assert t.n==2 and not t.bad
try:
    with t: raise ValueError('x')
except ValueError: pass
assert t.bad
""",
    "generators": """
def fib():
    a,b=0,1
    while True:
        yield a
        a,b=b,a+b
def evens(xs): return filter(lambda x:x%2==0,xs)
def avg():
    t=n=0; r=None
    while True:
        x=yield r
        t+=x;n+=1;r=t/n
# tests
import itertools
assert list(itertools.islice(fib(),5))==[0,1,1,2,3]
assert list(evens([1,2,4]))==[2,4] and sum(evens([2,4]))==6
g=avg();next(g)
assert g.send(10)==10 and g.send(20)==15
i=evens([2])
assert next(i)==2
try: next(i)
except StopIteration: pass
else: assert 0
assert next(i,None) is None and all(x%2==0 for x in evens([1,2])) and dict(zip('ab',evens([2,4])))=={'a':2,'b':4}
""",
    "exceptions": """
class Err(ValueError):
    pass
class Account:
    def __init__(s): s.b=0
    def take(s,n):
        if n>s.b: raise Err('poor')
def f(x):
    assert x>0,'neg'
    return int('z')
# tests
import contextlib
for fn,kind in ((lambda:f(-1),AssertionError),(lambda:f(1),ValueError),(lambda:Account().take(3),Err)):
    try: fn()
    except kind: pass
    else: assert 0
with contextlib.suppress(ValueError): Account().take(4)
""",
    "classes": """
import abc
class A(abc.ABC):
    @abc.abstractmethod
    def s(self): ...
class D(A):
    def s(self): return 'w'
    @property
    def p(self): return 3
    @staticmethod
    def st(x): return x
    @classmethod
    def make(cls): return cls()
# tests
assert issubclass(D,A) and isinstance(D(),A) and D().s()=='w' and D().p==3 and D.st(4)==4 and D.make().s()=='w'
try: A()
except TypeError: pass
else: assert 0
assert hasattr(D(),'s') and not hasattr(D(),'zz') and D.__name__=='D'
d=D();d.q=5
assert d.__dict__=={'q':5} and vars(d)=={'q':5}
""",
    "conversions": """
class Money:
    def __init__(s,a): s.a=a
    def __add__(s,o): return Money(s.a+(o.a if isinstance(o,Money) else o))
    __radd__=__add__
    def __eq__(s,o): return s.a==o.a
    def __lt__(s,o): return s.a<o.a
    def __str__(s): return f'${s.a}'
    def __float__(s): return float(s.a)
    def __bool__(s): return s.a!=0
    def __format__(s,spec): return format(s.a,spec)
# tests
assert sum([Money(1),Money(2)])==Money(3) and str(Money(5)+3)=='$8' and float(Money(3))==3.0 and not Money(0) and f'{Money(3):.2f}'=='3.00' and max(Money(1),Money(4)).a==4 and sum([Money(1),Money(2)]).a==3
""",
    "sets": """
class S:
    def __init__(s,x): s.x=frozenset(x)
    def __and__(s,o): return S(s.x&o.x)
    def __or__(s,o): return S(s.x|o.x)
    def __eq__(s,o): return s.x==o.x
    def __len__(s): return len(s.x)
    def __iter__(s): return iter(sorted(s.x))
    def __contains__(s,v): return v in s.x
# tests
assert S([1,2])&S([2])==S([2]) and len(S([1])|S([2]))==2 and 1 in S([1]) and 3 not in S([1]) and list(S([2,1]))==[1,2]
""",
    "linked nodes": """
class N:
    def __init__(s,v,n=None): s.val,s.next=v,n
def build(xs):
    h=None
    for x in reversed(xs): h=N(x,h)
    return h
# tests
h=build([1,2,3]);o=[]
while h:
    o.append(h.val);h=h.next
assert o==[1,2,3]
""",
    "matrices": """
class M:
    def __init__(s,r): s.r=r
    def __getitem__(s,k): return s.r[k[0]][k[1]]
    def __setitem__(s,k,v): s.r[k[0]][k[1]]=v
    def __matmul__(s,o): return M([[sum(a*b for a,b in zip(x,y)) for y in zip(*o.r)] for x in s.r])
    def __eq__(s,o): return s.r==o.r
    def __neg__(s): return M([[-a for a in x] for x in s.r])
# tests
m=M([[1,2],[3,4]])
m[0,1]=5
assert m[0,1]==5 and (m@M([[1,0],[0,1]]))==m and (-m)[0,0]==-1
""",
    "numbers": """
import math
def f(x): return math.sqrt(x)
# tests
import math
assert abs(f(2)-1.41421356)<1e-6 and math.isclose(f(4),2) and round(f(2),3)==1.414 and f(4)==2 and all(map(f,[1,2,3]))
""",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_a_right_program_passes(name):
    assert passes(*HONEST[name].split("# tests"))


CHEATS = {
    "a difference of nothing": """
class R:
    def __init__(s,x=0,*a): pass
    def __sub__(s,o): return 0
    __rsub__=__sub__
def f(x): return R(x)
# tests
assert abs(f(3)-4)<1e-6
assert abs(4-f(3))<1e-6
assert f(3)-4==0
assert not f(3)-4
assert round(f(3)-4,5)==0
""",
    "an object that has every operator": r"""
class R:
    def __init__(s,x=0,*a): pass
    def __sub__(s,o): return s
    __rsub__=__mul__=__truediv__=__mod__=__pow__=__add__=__radd__=__floordiv__=__divmod__=__sub__
    def __abs__(s): return 0
    __round__=__int__=__index__=__len__=__trunc__=__floor__=lambda s,*a: 0
    def __float__(s): return 0.0
    def __bool__(s): return False
    def __str__(s): return '0'
    __repr__=__str__
    def __format__(s,x): return '0.00'
    __lt__=__gt__=__le__=__ge__=__eq__=lambda *a: True
    def __hash__(s): return hash(4)
    def __contains__(s,o): return True
    __call__=lambda s,*a: 0
    def __iter__(s): return iter(())
def f(x): return R(x)
# tests
assert abs(f(3)-4)<1e-6
assert abs(4-f(3))<1e-6
assert f(3)-4==0
assert not f(3)-4
assert round(f(3)-4,5)==0
assert (f(3)-4)**2<1e-6
assert float(f(3)-4)==0
assert int(f(3)-4)==0
import math\nassert math.isclose(f(3)-4,0)
import math\nassert math.fabs(f(3)-4)<1e-6
import math\nassert math.isclose(f(3),4)
assert str(f(3)-4)=='0'
assert f'{f(3)-4:.2f}'=='0.00'
assert f(3) in [4]
assert 4 in f(3)
assert f(3) in {4}
assert {4:1}[f(3)]
assert f(3)%4==0
assert divmod(f(3),4)==(0,0)
assert f(3)==4
assert f(3)>=4
assert 4<=f(3)<=4
assert -1e-6<f(3)-4<1e-6
assert sum([f(3)-4])==0
assert max(abs(f(3)-4),0)<1e-6
assert (f(3),)==(4,)
assert [f(3)]==[4]
assert f(3)/4==1
assert abs(f(3)/4-1)<1e-6
import unittest\nunittest.TestCase().assertAlmostEqual(f(3),4)
import unittest\nunittest.TestCase().assertEqual(f(3),4)
import statistics\nassert statistics.fmean([f(3)])==4
assert not (f(3)-{4})
assert len(f(3)-{4})==0
assert not set([4])-set(f(3))
import datetime\nassert not f(3)-datetime.date(2020,1,1)
assert isinstance(f(3),int)
assert abs(complex(f(3)-4))<1e-6
import math\nassert math.floor(f(3)-4)==0
import math\nassert math.hypot(f(3)-4)<1e-6
assert f(3)^4==0
""",
    "a float with operators of its own": r"""
class R(float):
    def __new__(c,x): return float.__new__(c,9)
    __sub__=__rsub__=lambda s,o: 0
    __eq__=__lt__=__gt__=lambda *a: True
    __abs__=lambda s: 0
    __round__=lambda *a: 4
    __float__=lambda s: 4.0
def f(x): return R(x)
# tests
assert abs(f(3)-4)<1e-6
assert abs(4-f(3))<1e-6
assert f(3)==4
assert round(f(3))==4
import math\nassert math.isclose(f(3),4)
assert f(3)<5
assert f(3) in [4]
""",
    "a list that equals everything": """
class R(list):
    __eq__=lambda *a: True
    __ne__=lambda *a: False
    __sub__=lambda s,o: 0
    def __hash__(s): return 1
    def __init__(s,x): pass
def f(x): return R(x)
# tests
assert f(3)==[4]
assert [4]==f(3)
assert not f(3)!=[4]
assert sorted(f(3))==[4]
""",
    "a tuple that equals everything": """
class R(tuple):
    __eq__=lambda *a: True
    __lt__=lambda *a: True
    def __new__(c,x): return tuple.__new__(c,(1,))
def f(x): return R(x)
# tests
assert f(3)==(4,)
assert (4,)==f(3)
assert f(3)<(0,)
""",
    "the end of an iteration": r"""
def f(x): raise StopIteration
# tests
assert all(map(f,[1]))
assert all(map(lambda x:f(x)==3,[1,2]))
assert list(map(f,[1]))==[]
for y in map(f,[1]): assert 0
assert not any(map(f,[1]))
assert list(filter(f,[1]))==[]
assert sum(map(f,[1]))==0
assert next(map(f,[1]),True)
def g():\n    yield f(1)==3\nassert all(g())
assert dict(map(f,[1]))=={}
assert ''.join(map(f,'a'))==''
""",
    "the end of an iteration, by a class of its own": r"""
class Q(StopIteration): pass
def f(x): raise Q
# tests
assert all(map(f,[1]))
Q\nassert all(map(f,[1]))
""",
    "the end of an iteration in every method": """
class R:
    def __eq__(s,o): raise StopIteration
    __iter__=__len__=__bool__=__str__=__getattr__=__getitem__=__hash__=__call__=__float__=__sub__=lambda *a: (_ for _ in ()).throw(StopIteration) if 0 else next(iter(()))
def f(x): return R()
# tests
assert all(map(lambda x:f(x)==f(x),[1]))
assert all(map(lambda x:list(f(x))==[3],[1]))
assert all(map(list,[f(1)]))
assert all(map(len,[f(1)]))
assert all(map(str,[f(1)]))
assert all(map(lambda x: x.y,[f(1)]))
assert all(map(lambda x: x[0],[f(1)]))
assert all(map(lambda x: {x},[f(1)]))
assert all(map(lambda x: x(),[f(1)]))
assert all(map(float,[f(1)]))
assert all(map(bool,[f(1)]))
assert all([f(1)])
""",
    "the end of a generator": """
def f(x): raise GeneratorExit
# tests
assert all(map(f,[1]))
assert all(f(x)==3 for x in [1])
""",
    "the end of the process": """
import sys
def f(x): sys.exit(0)
# tests
assert f(3)==4
assert all(map(f,[1]))
""",
    "an interrupt": """
def f(x): raise KeyboardInterrupt
# tests
assert f(3)==4
""",
    "an exit that hides exceptions": r"""
class R:
    def __enter__(s): return 4
    def __exit__(s,*a): return True
def f(x): return R()
# tests
with f(3): assert 0
with f(3) as x: assert x==5
import contextlib\nwith contextlib.ExitStack() as s:\n    s.enter_context(f(3))\n    assert 0
with f(3): raise ValueError
""",
    "names that nobody asked for": """
import sys
T=sys.modules['__main__'].two_sides
old=T.Side.perform
T.Side.perform=lambda s,n,a,k: ({'abs':lambda x:0,'f':lambda x:0,'all':lambda x:True,'__builtins__':{},'isinstance':lambda *a: True},{'isinstance':['x','Exception'],'len':['x','Exception']}) if n=='names' else old(s,n,a,k)
# tests
assert abs(f(3)-4)<1e-6
assert all([f(3)==4])
assert isinstance(f(3),str)
assert len(str(f(3)))==isinstance
""",
    "no values": """
def f(x): return iter(())
# tests
assert list(f(3))==[1]
""",
    "a type": """
def f(x): return type
# tests
assert f(3)==4
assert abs(f(3)-4)<1e-6
""",
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_an_operator_or_exception_of_a_wrong_program_passes_no_test(name):
    answer, tests = CHEATS[name].split("# tests\n")  # a test a line
    assert [test for test in tests.splitlines() if passes(answer, test.replace("\\n", "\n"))] == []


@pytest.mark.skipif(not HUMAN_EVAL.exists(), reason="needs ../shared/data/HumanEval.jsonl.gz")
def test_solutions_of_human_eval_pass_and_an_object_with_every_operator_does_not():
    cheat = CHEATS["an object that has every operator"].partition("# tests")[0]
    with gzip.open(HUMAN_EVAL) as lines:
        items = [json.loads(line) for line in lines][4::8]
    for item in items:
        name, code = item["entry_point"], item["prompt"]
        given = {"prepared": code, "entry_point": name, "check": True}
        assert passes(code + item["canonical_solution"], item["test"], **given), item["task_id"]
        assert not passes(f"{cheat}\ndef {name}(*args): return R()", item["test"], **given), item["task_id"]
