"""Exit codes of errors that a user can fix. Importing this module imports no torch and no Dagster."""

from model_ops.devices import UnknownDevice
from model_ops.errors import ModelError
from model_ops.planning.choice import NothingFits
from pipelines.contract.base_choice import BaseModelError
from pipelines.contract.recipe import RecipeError
from pipelines.init.write_recipe import InitError
from pipelines.keeping.dagster_servers import ServerEnded, UiError
from pipelines.planning.sweep import SweepError, SweepFailed
from pipelines.planning.training_plan import PlanError
from pipelines.rebuilding.rebuild import RebuildError
from pipelines.releasing.measuring import MeasureError
from pipelines.running.submit import UnknownRunError
from pipelines.showing.nothing_to_show import NothingToShow
from pipelines.storage.storage_errors import StorageError
from resources.artefacts.erased import ErasedRecordError
from resources.artefacts.manifest import ManifestError
from resources.capture.capture_error import CaptureError
from resources.catalog.catalog import CatalogError
from resources.catalog.why import UnknownIdError
from resources.composing.dataset_diff import DiffError
from resources.curating.judge_endpoint import JudgeError
from resources.damaged_files import DamagedFileError
from resources.deciding.requests import RequestError
from resources.inspecting.inspection import InspectError
from resources.lake import LakeError
from resources.launching.devices import DevicesError
from resources.launching.postgres import PostgresError
from resources.reading.sources import SourceError
from resources.releasing.endpoint_log import EndpointLogError
from resources.releasing.endpoints import EndpointError
from resources.releasing.release import ReleaseError
from resources.releasing.release_names import UnknownReleaseError, UnsureNameError
from resources.releasing.signature import SignatureError
from resources.scraping.target import ScrapeError
from resources.serving.programs import ServeError, UnknownServedError
from resources.signing.keys import KeyProblemError
from resources.signing.model_signature import SignatureRefusedError, SigningMissingError
from resources.teaching.endpoint import TeacherError
from stores.s3 import S3Error

MISUSE = (RecipeError, LakeError, SourceError, CatalogError, InspectError, PlanError, SweepError, MeasureError,
          UnknownDevice, SignatureError, UnsureNameError, InitError, BaseModelError, UiError, UnknownRunError,
          NothingToShow, RebuildError, DiffError, KeyProblemError, SigningMissingError,
           CaptureError, PostgresError, DevicesError, ScrapeError, UnknownServedError,
           RequestError, UnknownReleaseError)
"""Errors of a request that cannot be fulfilled: exit code 2."""

FOUND_WRONG = (ManifestError, ErasedRecordError, ReleaseError, EndpointError, EndpointLogError, JudgeError, TeacherError,
               UnknownIdError, SignatureRefusedError, NothingFits, ModelError, ServerEnded, StorageError, SweepFailed, S3Error,
               DamagedFileError, ServeError)
"""Errors of a checked object: exit code 1."""
