//! The JSON Schema of reports, generated from the types.

use schemars::generate::SchemaSettings;

use super::Report;

/// The schema that every report written by this version fulfils.
pub fn schema() -> serde_json::Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<Report>().to_value()
}
