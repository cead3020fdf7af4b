import cv2
import numpy as np
import pytest
import torch
from facenet_pytorch import MTCNN, PNet
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage.data import astronaut

from deblur.area_sampling import AreaSampler
from deblur.detector_layers import MaxPool, PReLU, Scanner
from deblur.errors import OptionError, UnsupportedImage
from deblur.faces import Face, FaceDetector, iou, match_faces, sorted_faces


@pytest.fixture(scope="module")
def detector():
    return FaceDetector(threshold=0.7)


@pytest.fixture(scope="module")
def portrait():
    return np.ascontiguousarray(astronaut()[:300, 80:380])


def busy_picture(height, width, seed=0):
    """A picture with texture at several scales and the same face at several sizes."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 50 + 2, width // 50 + 2, 3), dtype=np.uint8)
    picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    face = astronaut()[:220, 120:340]
    x = y = 0
    for factor in (0.5, 0.9, 1.4, 2.0, 0.7, 1.1):
        scaled = cv2.resize(face, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        if x + scaled.shape[1] > width:
            x, y = 0, y + 460
        if y + scaled.shape[0] > height:
            break
        picture[y : y + scaled.shape[0], x : x + scaled.shape[1]] = scaled
        x += scaled.shape[1] + 30
    return picture


def stock_faces(picture, min_face_px=20):
    stock = MTCNN(keep_all=True, select_largest=False, min_face_size=min_face_px)
    boxes, scores, landmarks = stock.detect(Image.fromarray(picture), landmarks=True)
    if boxes is None:
        return []
    order = np.argsort(-scores)
    return [Face(tuple(boxes[i]), float(scores[i]), tuple(map(tuple, landmarks[i]))) for i in order]


@pytest.mark.parametrize("blur_px", [1, 5, 11])
def test_boxes_scores_and_landmarks_are_those_of_the_stock_pipeline(detector, blur_px):
    picture = cv2.blur(busy_picture(480, 900), (blur_px, 1))
    ours, stock = detector.detect(picture), stock_faces(picture)
    assert len(ours) == len(stock) >= 1
    for mine, theirs in zip(ours, stock, strict=True):
        np.testing.assert_allclose(mine.box, theirs.box, atol=0.01)
        np.testing.assert_allclose(mine.landmarks, theirs.landmarks, atol=0.01)
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)


def test_boxes_agree_with_the_stock_pipeline_where_a_large_picture_is_shrunk():
    picture = busy_picture(1000, 1600, seed=1)
    detector = FaceDetector(largest_level_px=60_000)
    smallest = detector.smallest_face_px(1000, 1600)
    assert smallest > 60  # the finest levels are skipped, and the levels come from a smaller picture
    reference = [f for f in stock_faces(picture) if f.score >= 0.9 and f.height_px > 1.2 * smallest]
    matched = match_faces(detector.detect(picture), reference, least_iou=0.75)
    assert len(reference) >= 4
    assert all(found is not None for _, found in matched)


def test_smallest_face_grows_with_the_picture_only_beyond_two_megapixels():
    detector = FaceDetector()
    assert detector.smallest_face_px(1080, 1920) == pytest.approx(20)
    assert detector.smallest_face_px(3000, 4000) == pytest.approx(56, abs=0.5)
    assert detector.smallest_face_px(4320, 7680) < 80


def test_faces_keep_their_boxes_where_smaller_ones_are_not_looked_for(detector):
    picture = busy_picture(480, 900)
    everything = detector.detect(picture)
    large = [face for face in everything if face.height_px >= 100]
    assert 0 < len(large) < len(everything)
    found = detector.detect(picture, smallest_px=100)
    assert all(match is not None for _, match in match_faces(found, large, least_iou=0.8))
    assert all(face.height_px > 40 for face in found)
    assert detector.detect(picture, smallest_px=2000) == []


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (19, 19), (12, 300), (20, 20), (21, 2000)])
def test_small_and_odd_pictures_give_an_empty_answer(detector, size):
    levels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert detector.detect(levels) == []


def test_a_picture_without_a_face_gives_no_face(detector):
    assert detector.detect(np.full((131, 257, 3), (33, 25, 23), np.uint8)) == []


def test_an_8k_picture_is_searched(detector):
    picture = np.zeros((4320, 7680, 3), np.uint8)
    face = cv2.resize(astronaut()[:220, 120:340], (900, 900), interpolation=cv2.INTER_CUBIC)
    picture[3000:3900, 6000:6900] = face
    (found,) = detector.detect(picture)
    assert 6000 < found.box[0] < found.box[2] < 6900
    assert found.score > 0.99


def test_grey_alpha_and_sixteen_bit_pictures_are_looked_at_alike(detector, portrait):
    grey = cv2.cvtColor(portrait, cv2.COLOR_RGB2GRAY)
    stacked = np.repeat(grey[:, :, None], 3, axis=2)
    expected = detector.detect(stacked)
    assert len(expected) == 1
    assert detector.detect(grey) == detector.detect(grey[:, :, None]) == expected
    assert detector.detect(stacked.astype(np.uint16) * 257) == expected
    with_alpha = np.dstack([stacked, np.zeros(grey.shape, np.uint8)])
    assert detector.detect(with_alpha) == expected


def test_a_batch_gives_each_picture_what_it_gets_alone(detector, portrait):
    blank = np.zeros((64, 64, 3), np.uint8)
    mirrored = np.ascontiguousarray(portrait[:, ::-1])
    pictures = [portrait, blank, mirrored, portrait[:200], blank[:5, :5]]
    together = detector.detect_batch(pictures)
    assert [len(faces) for faces in together] == [1, 0, 1, 1, 0]
    for faces, picture in zip(together, pictures, strict=True):
        alone = detector.detect(picture)
        for a, b in zip(faces, alone, strict=True):
            np.testing.assert_allclose(a.box, b.box, atol=1e-3)
    assert detector.detect_batch([]) == []


def test_two_runs_give_the_same_answer_to_the_last_bit(detector):
    picture = busy_picture(400, 700, seed=2)
    assert detector.detect(picture) == detector.detect(picture) != []


def test_a_higher_threshold_only_drops_faces(detector):
    picture = cv2.blur(busy_picture(480, 900, seed=3), (9, 9))
    loose = detector.detect(picture)
    strict = FaceDetector(threshold=0.99).detect(picture)
    assert strict == [face for face in loose if face.score >= 0.99]


def test_the_landmarks_lie_where_they_are_named(detector, portrait):
    (face,) = detector.detect(portrait)
    left_eye, right_eye, nose, mouth_left, mouth_right = face.landmarks
    assert left_eye[0] < nose[0] < right_eye[0]
    assert mouth_left[0] < mouth_right[0]
    assert left_eye[1] < nose[1] < mouth_left[1]
    assert face.eye_distance_px == pytest.approx(right_eye[0] - left_eye[0], rel=0.05)


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_turned_face_is_found_at_its_place_in_the_picture(portrait, turn):
    marked = portrait[:220]
    (upright,) = FaceDetector().detect(marked)
    (found,) = FaceDetector(turns=(turn,)).detect(np.rot90(marked, -turn))
    rows, columns = (np.rot90(axis, -turn) for axis in np.mgrid[: marked.shape[0], : marked.shape[1]])
    for (x, y), (upright_x, upright_y) in zip(found.landmarks, upright.landmarks, strict=True):
        assert columns[int(y), int(x)] == pytest.approx(upright_x, abs=1.5)
        assert rows[int(y), int(x)] == pytest.approx(upright_y, abs=1.5)
    x0, y0, x1, y1 = found.box
    assert all(x0 < x < x1 and y0 < y < y1 for x, y in found.landmarks)
    assert sorted([found.width_px, found.height_px]) == pytest.approx(sorted([upright.width_px, upright.height_px]))


def test_further_turns_are_only_looked_at_where_there_is_no_face_yet(portrait):
    upright, upside_down = portrait[:220], np.rot90(portrait[:220], 2)
    found = FaceDetector(turns=(0, 2)).detect_batch([upright, upside_down])
    assert found[0] == FaceDetector().detect(upright)
    assert FaceDetector().detect(upside_down) == []
    assert len(found[1]) == 1


@pytest.mark.parametrize(
    "levels",
    [
        np.zeros((32, 32, 3), np.float32),
        np.zeros((32, 32, 2), np.uint8),
        np.zeros((0, 32, 3), np.uint8),
        np.zeros((2, 32, 32, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused_by_name(detector, levels):
    with pytest.raises(UnsupportedImage, match="expected"):
        detector.detect(levels)


@pytest.mark.parametrize(
    "options",
    [{"threshold": 0.5}, {"threshold": 1.1}, {"min_face_px": 3}, {"largest_level_px": 1}, {"turns": (4,)}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(OptionError):
        FaceDetector(**options)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40), st.integers(0, 999))
def test_area_levels_are_those_of_torch(height, width, rows, columns, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    tensor = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
    expected = torch.nn.functional.interpolate(tensor, size=(rows, columns), mode="area")
    level = AreaSampler(picture, finest_scale=1.0).level(rows, columns)
    np.testing.assert_allclose(level, expected[0].permute(1, 2, 0).numpy(), atol=1e-3)


def test_what_comes_from_halved_pictures_is_near_what_the_picture_itself_gives():
    picture = cv2.GaussianBlur(busy_picture(768, 1024), (0, 0), 9)
    exact, fast = AreaSampler(picture, finest_scale=1.0), AreaSampler(picture, finest_scale=0.1)
    corners = np.array([[1, 1, 30, 30], [50, 40, 290, 280], [-9, -9, 900, 700]], np.float32)
    assert np.abs(fast.level(75, 100) - exact.level(75, 100)).mean() < 5  # a whole level pixel off gives 8
    assert np.abs(fast.crops(corners, 24) - exact.crops(corners, 24)).mean() < 8
    np.testing.assert_array_equal(fast.crops(corners[:1], 24), exact.crops(corners[:1], 24))  # too small to halve


@pytest.mark.parametrize("side_px", [2, 3])
@pytest.mark.parametrize("size", [(3, 4), (8, 9), (11, 10), (13, 13)])
def test_pooling_is_that_of_torch(side_px, size):
    given = torch.randn(2, 5, *size).contiguous(memory_format=torch.channels_last)
    expected = torch.nn.functional.max_pool2d(given, side_px, 2, ceil_mode=True)
    assert torch.equal(MaxPool(side_px)(given), expected)


@pytest.mark.parametrize("shape", [(2, 10, 7, 9), (1, 3, 1, 1), (3, 28, 11, 11), (4, 128)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_slopes_are_those_of_torch(shape, channels_last):
    given = torch.randn(shape)
    if channels_last and len(shape) == 4:
        given = given.contiguous(memory_format=torch.channels_last)
    slopes, kept = torch.randn(shape[1]), given.clone()
    assert torch.equal(PReLU(slopes)(given), torch.nn.functional.prelu(given, slopes))
    assert torch.equal(given, kept)


def test_one_convolution_answers_like_the_two_heads_of_pnet():
    torch.manual_seed(0)
    pnet = PNet(pretrained=False).eval()
    given = torch.randn(2, 3, 40, 53)
    with torch.no_grad():
        for answer, expected in zip(Scanner(pnet)(given), pnet(given), strict=True):
            torch.testing.assert_close(answer, expected, rtol=0, atol=1e-6)


def boxes():
    corner, side = st.integers(-20, 60), st.integers(1, 50)
    return st.builds(lambda x, y, w, h: (x, y, x + w, y + h), corner, corner, side, side)


@given(boxes(), boxes())
def test_iou_counts_pixels(a, b):
    canvas_a, canvas_b = np.zeros((150, 150), bool), np.zeros((150, 150), bool)
    for canvas, box in ((canvas_a, a), (canvas_b, b)):
        x0, y0, x1, y1 = (v + 30 for v in box)
        canvas[y0:y1, x0:x1] = True
    expected = (canvas_a & canvas_b).sum() / (canvas_a | canvas_b).sum()
    assert iou(a, b) == pytest.approx(expected)
    assert iou(b, a) == iou(a, b)


def test_one_detection_counts_for_one_face_only():
    truth = [Face((0, 0, 10, 10), 1.0), Face((1, 0, 11, 10), 1.0)]
    found = [Face((0, 0, 10, 10), 0.9)]
    assert match_faces(found, truth) == [(truth[0], found[0]), (truth[1], None)]
    assert match_faces([], truth) == [(truth[0], None), (truth[1], None)]
    assert match_faces(found, []) == []


def test_the_best_overlap_is_matched_first_whatever_the_order():
    truth = [Face((0, 0, 10, 10), 1.0), Face((4, 0, 14, 10), 1.0)]
    found = [Face((1, 0, 11, 10), 0.99), Face((0, 0, 10, 10), 0.8)]
    for order in (found, found[::-1]):
        assert match_faces(order, truth)[0] == (truth[0], found[1])
        assert match_faces(order, truth)[1] == (truth[1], found[0])


def test_a_box_below_the_least_overlap_is_a_miss():
    truth = [Face((0, 0, 10, 10), 1.0)]
    found = [Face((6, 0, 16, 10), 0.99)]
    assert match_faces(found, truth) == [(truth[0], None)]
    assert match_faces(found, truth, least_iou=0.2) == [(truth[0], found[0])]


def test_faces_are_sorted_by_score_then_box():
    faces = [Face((2, 0, 9, 9), 0.8), Face((1, 0, 9, 9), 0.8), Face((5, 5, 9, 9), 0.95)]
    assert sorted_faces(faces) == [faces[2], faces[1], faces[0]]
