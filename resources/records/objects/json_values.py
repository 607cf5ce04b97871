"""Finds where the values of JSON arrays, or of objects that span lines, begin and end: one pass over the bytes, in compiled
code. Only brackets and strings are tracked, so an invalid value is found too and does not affect the next one."""

import numpy as np

from model_ops.machine import compiled

AT_ONCE = 1 << 16
_POSITION, _BEGIN, _IN_ARRAY = 0, 4, 5  # of the state; between them depth, in_string, escaped
_NOWHERE = -1


class Values:
    """The state of the scan. `begin`: offset in the last piece where an unfinished value began, or None."""

    def __init__(self, in_array: bool):
        self._state = np.zeros(6, np.int64)
        self._state[_BEGIN] = _NOWHERE
        self._state[_IN_ARRAY] = 2 if in_array else 0  # 2: an opening bracket comes first

    @property
    def closed(self) -> bool:
        """Whether no array is open. Another may follow."""
        return bool(self._state[_IN_ARRAY] != 1)

    @property
    def begin(self) -> int | None:
        begin = int(self._state[_BEGIN])
        return None if begin == _NOWHERE else begin

    def shift(self, dropped: int) -> None:
        """Moves the state when the next piece begins `by` bytes later; scanned bytes are not scanned again."""
        self._state[_POSITION] -= dropped
        if self._state[_BEGIN] != _NOWHERE:
            self._state[_BEGIN] = max(self._state[_BEGIN] - dropped, 0)

    def find(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of the values that end in `data`, which begins with the unfinished value of the last piece, if any."""
        octets, starts, ends = np.frombuffer(data, np.uint8), [], []
        while True:
            first, last = np.empty(AT_ONCE, np.int64), np.empty(AT_ONCE, np.int64)
            count = _find(octets, self._state, first, last)
            starts.append(first[:count])
            ends.append(last[:count])
            if count < AT_ONCE:
                return np.concatenate(starts), np.concatenate(ends)


@compiled
def _find(data, state, starts, ends):
    position, depth, in_string, escaped = state[0], state[1], state[2], state[3]
    begin, in_array = state[4], state[5]
    count = 0
    while position < len(data) and count < len(starts):
        octet = data[position]
        if in_string:
            if escaped:
                escaped = 0
            elif octet == 92:  # \
                escaped = 1
            elif octet == 34:  # "
                in_string = 0
        elif depth == 0 and begin >= 0 and octet in (32, 9, 10, 13, 44, 93, 91, 123):
            starts[count], ends[count] = begin, position  # a bare word or string, ended by space or punctuation
            count += 1
            begin = -1
            continue
        elif octet == 34:
            in_string = 1
            if begin < 0:
                begin = position
        elif octet in (123, 91):  # { [
            if in_array == 2 and octet == 91:
                in_array = 1
            else:
                depth += 1
                if begin < 0:
                    begin = position
        elif octet in (125, 93) and depth > 0:  # } ]
            depth -= 1
            if depth == 0:
                starts[count], ends[count] = begin, position + 1
                count += 1
                begin = -1
        elif octet == 93 and in_array:
            in_array = 2
        elif octet not in (32, 9, 10, 13, 44) and begin < 0:
            begin = position
        position += 1
    state[0], state[1], state[2], state[3] = position, depth, in_string, escaped
    state[4], state[5] = begin, in_array
    return count
